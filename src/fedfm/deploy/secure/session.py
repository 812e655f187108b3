"""What a client remembers during a round's secure sums, and what it sends to others.

Everything is JSON as bytes. A session holds private keys: keep it in memory only.
"""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Self

from pydantic import BaseModel, ConfigDict

from fedfm.deploy.errors import SecureError, insist
from fedfm.deploy.secure import keys


class JsonMessage(BaseModel):
    """A value that is sent and kept as JSON."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        ser_json_bytes="base64",
        val_json_bytes="base64",
        hide_input_in_errors=True,
    )

    def to_bytes(self) -> bytes:
        """Return the value as JSON."""
        return self.model_dump_json().encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Return the value of which `to_bytes` gave `data`; refuse anything else."""
        try:
            return cls.model_validate_json(data)
        except ValueError:
            raise SecureError(f"these bytes are not of the form {cls.__name__}") from None

    def __repr__(self) -> str:
        """Return the class name only: the contents may be secret."""
        return f"{type(self).__name__}(...)"

    __str__ = __repr__


class PublicKeys(JsonMessage):
    """A client's public key for shares and, by purpose, its keys for masks and commitments."""

    encryption: bytes
    masking: dict[str, bytes]
    commitments: dict[str, bytes]

    def check(self, purposes: Iterable[str], client: int) -> None:
        """Refuse keys for other purposes and bytes that are not keys."""
        named = self.masking.keys() == set(purposes) == self.commitments.keys()
        insist(named, f"its keys are not for {', '.join(sorted(purposes))}", client)
        points = (self.encryption, *self.masking.values())
        valid = all(map(keys.is_public_key, points))
        insist(valid, "a public key is not a point of the curve", client)
        sizes = {len(value) for value in self.commitments.values()}
        insist(sizes <= {keys.COMMITMENT_BYTES}, "a commitment has the wrong length", client)


class Pair(JsonMessage):
    """The two secrets of a client for one purpose, or a share of each.

    `seed` gives the client's self mask, `key` the masks that it shares with every other client.
    """

    seed: bytes
    key: bytes


class PeerShares(JsonMessage):
    """What a client sends to another one, encrypted: shares of its secrets, by purpose."""

    sender: int
    receiver: int
    agreement: bytes
    shares: dict[str, Pair]


class Session(JsonMessage):
    """Everything that a client remembers from `open_session` on.

    `held` holds the shares of every client that takes part, `masked` the purposes that this client
    has contributed to, and `answered` the survivors for which it has revealed shares, by purpose.
    """

    encryption: bytes
    secrets: dict[str, Pair]
    client: int = -1
    threshold: int = 0
    keys: dict[int, PublicKeys] = {}
    agreement: bytes = b""
    held: dict[int, dict[str, Pair]] = {}
    masked: frozenset[str] = frozenset()
    answered: dict[str, frozenset[int]] = {}

    @property
    def public(self) -> PublicKeys:
        """The public keys and commitments of the secrets."""
        return PublicKeys(
            encryption=keys.public_key(self.encryption),
            masking={name: keys.public_key(pair.key) for name, pair in self.secrets.items()},
            commitments={name: keys.commitment(pair.seed) for name, pair in self.secrets.items()},
        )


def digest_setup(public: Mapping[int, PublicKeys], threshold: int) -> bytes:
    """Return a digest of keys and threshold; all encrypted shares carry it, so all must agree."""
    digest = hashlib.sha256(f"{threshold};".encode())
    for client in sorted(public):
        keys_of_client = public[client].to_bytes()
        digest.update(f"{client}:{len(keys_of_client)}:".encode() + keys_of_client)
    return digest.digest()


def share_index(public: Mapping[int, PublicKeys], client: int) -> int:
    """Return the index, from 1, of the share that a client gets of every secret."""
    return sorted(public).index(client) + 1
