"""The keys of nodes, in files of OpenSSH."""

from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

from fedfm.core.errors import UserError, require


def load_key_pair(path: Path) -> tuple[ec.EllipticCurvePrivateKey, ec.EllipticCurvePublicKey]:
    """Return the private and public key in an OpenSSH file."""
    try:
        key = load_ssh_private_key(path.read_bytes(), None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as problem:
        raise UserError(f"{path} is not a private key without a password: {problem}") from None
    require(isinstance(key, ec.EllipticCurvePrivateKey), f"{path}: the key must be an ECDSA key")
    return key, key.public_key()  # type: ignore[return-value]  # required above


def read_public_key(path: Path) -> bytes:
    """Return the public key in an OpenSSH file, in the form that Flower stores."""
    try:
        key = load_ssh_public_key(path.read_bytes())
    except (ValueError, UnsupportedAlgorithm) as problem:
        raise UserError(f"{path} is not a public key: {problem}") from None
    require(isinstance(key, ec.EllipticCurvePublicKey), f"{path}: the key must be an ECDSA key")
    return public_key_to_bytes(key)  # type: ignore[arg-type]  # required above
