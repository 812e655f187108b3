"""Recognise clients by the signature that Flower's nodes put into the head of every request.

The superlink checks the same signature, but only after it has read the whole request.
"""

import time
from base64 import b64decode
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_ssh_public_key,
)

KEY, SIGNATURE, SIGNED = "flwr-public-key", "flwr-signature", "flwr-timestamp"
"""The headers with a node's public key, its signature, and the text that it signs."""
FRESH = 1.0
"""Seconds after which the folder of keys is read again: keys come and go."""


class _Known(NamedTuple):
    client: str
    key: EllipticCurvePublicKey


class ClientKeysIndex:
    """The clients whose public keys are in a folder.

    Without a folder everybody is a client, and is known by the key that it shows, or its address.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.read_at = float("-inf")
        self.known: dict[bytes, _Known] = {}

    def recognise(self, headers: Mapping[str, str], address: str) -> str | None:
        """Return the name of the client that signed a request; None: a stranger."""
        if self.folder is None:
            return headers.get(KEY, address)
        try:
            key, signature = (b64decode(headers[name], validate=True) for name in (KEY, SIGNATURE))
            known = self._clients()[key]
            known.key.verify(signature, headers[SIGNED].encode(), ECDSA(hashes.SHA256()))
        except (LookupError, ValueError, InvalidSignature):
            return None
        return known.client

    def _clients(self) -> dict[bytes, _Known]:
        if self.folder and time.monotonic() - self.read_at > FRESH:
            keys = [_read_key(path) for path in sorted(self.folder.glob("*.pub"))]
            self.known = {_to_pem(each.key): each for each in keys if each}
            self.read_at = time.monotonic()
        return self.known


def _read_key(path: Path) -> _Known | None:
    """Return the key in a file; None if it is of another kind, which the superlink refuses too."""
    try:
        key = load_ssh_public_key(path.read_bytes())
    except (OSError, ValueError, UnsupportedAlgorithm):
        return None
    return _Known(path.stem, key) if isinstance(key, EllipticCurvePublicKey) else None


def _to_pem(key: EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
