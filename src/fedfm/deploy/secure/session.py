"""What a client remembers of a round's secure sums, and what it tells the others.

All of it is JSON as bytes. A session holds private keys: it belongs in memory only.
"""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Self

from pydantic import BaseModel, ConfigDict, ValidationError

from fedfm.deploy.secure import keys
from fedfm.deploy.secure.errors import SecureError, insist


class Message(BaseModel):
    """A value that travels as bytes."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        ser_json_bytes="base64",
        val_json_bytes="base64",
        hide_input_in_errors=True,
    )

    def to_bytes(self) -> bytes:
        """The value as JSON."""
        return self.model_dump_json().encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """The inverse of `to_bytes`; anything else is refused."""
        try:
            return cls.model_validate_json(data)
        except ValidationError:
            raise SecureError(f"these bytes are no {cls.__name__}") from None

    def __repr__(self) -> str:
        """The class alone: what is inside may be secret."""
        return f"{type(self).__name__}(...)"

    __str__ = __repr__


class PublicKeys(Message):
    """What a client publishes: a key for letters; by purpose, keys for masks and commitments."""

    encryption: bytes
    masking: dict[str, bytes]
    commitments: dict[str, bytes]

    def check(self, purposes: Iterable[str], client: int) -> None:
        """Refuse keys of other purposes and bytes that are no keys."""
        named = self.masking.keys() == set(purposes) == self.commitments.keys()
        insist(named, f"its keys are not for {', '.join(sorted(purposes))}", client)
        points = (self.encryption, *self.masking.values())
        insist(
            all(map(keys.is_public_key, points)), "a public key is no point of the curve", client
        )
        sizes = {len(value) for value in self.commitments.values()}
        insist(sizes <= {keys.COMMITMENT_BYTES}, "a commitment has the wrong length", client)


class Pair(Message):
    """The two secrets of a client for one purpose, or a share of each.

    `seed` gives its own mask, `key` the masks it has in common with every other client.
    """

    seed: bytes
    key: bytes


class Letter(Message):
    """What a client sends another, encrypted: its shares for that one, by purpose."""

    sender: int
    receiver: int
    agreement: bytes
    shares: dict[str, Pair]


class Session(Message):
    """All a client remembers from `opened` on.

    `held` has the shares of every client that takes part, `masked` the purposes this one has
    contributed to, `answered` the survivors it has named shares for, by purpose.
    """

    encryption: bytes
    secrets: dict[str, Pair]
    own: int = -1
    threshold: int = 0
    keys: dict[int, PublicKeys] = {}
    agreement: bytes = b""
    held: dict[int, dict[str, Pair]] = {}
    masked: frozenset[str] = frozenset()
    answered: dict[str, frozenset[int]] = {}

    @property
    def public(self) -> PublicKeys:
        """What the others may know of the secrets."""
        return PublicKeys(
            encryption=keys.public_key(self.encryption),
            masking={name: keys.public_key(pair.key) for name, pair in self.secrets.items()},
            commitments={name: keys.commitment(pair.seed) for name, pair in self.secrets.items()},
        )

    def having(self, **changes: object) -> Self:
        """The session with some fields changed."""
        return self.model_copy(update=changes)


def agreement(public: Mapping[int, PublicKeys], threshold: int) -> bytes:
    """A digest of all that the clients of a round must agree on; every letter carries it."""
    digest = hashlib.sha256(f"{threshold};".encode())
    for client in sorted(public):
        told = public[client].to_bytes()
        digest.update(f"{client}:{len(told)}:".encode() + told)
    return digest.digest()


def position(public: Mapping[int, PublicKeys], client: int) -> int:
    """The number, from 1, of the share that a client gets of every secret."""
    return sorted(public).index(client) + 1
