"""Secrets of 31 bytes, and what is derived from them: key pairs, mask keys, commitments.

Only such secrets are split into shares. With padding a secret fills two blocks of the secret
sharing; the time per block dominates a sum of few numbers.
"""

from secrets import token_bytes

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from flwr.common.secure_aggregation.crypto.symmetric_encryption import generate_shared_key

SECRET_BYTES = 31
PUBLIC_BYTES = 33
COMMITMENT_BYTES = 32
_CURVE = ec.SECP256R1()
_SCALAR_BYTES = 48  # 128 bits more than the curve's order has: the remainder is uniform


def fresh_secret() -> bytes:
    """Return a new secret from the system's random source."""
    return token_bytes(SECRET_BYTES)


def public_key(secret: bytes) -> bytes:
    """Return the public key of a secret's P-256 key pair as a compressed point."""
    point = _private_key(secret).public_key()
    return point.public_bytes(Encoding.X962, PublicFormat.CompressedPoint)


def derive_shared_key(secret: bytes, peer: bytes) -> bytes:
    """Return the Diffie-Hellman key of a secret and a peer's public key, equal on both sides."""
    point = ec.EllipticCurvePublicKey.from_encoded_point(_CURVE, peer)
    return generate_shared_key(_private_key(secret), point)


def pair_mask_key(secret: bytes, peer: bytes, purpose: str) -> bytes:
    """Return the key [32 bytes] of the mask that two clients share for a purpose."""
    return _derive(derive_shared_key(secret, peer), f"pair mask: {purpose}")


def self_mask_key(seed: bytes, purpose: str) -> bytes:
    """Return the key [32 bytes] of a client's self mask for a purpose."""
    return _derive(seed, f"self mask: {purpose}")


def commitment(seed: bytes) -> bytes:
    """Return a commitment to a seed, which reveals nothing about it, to check a rebuilt seed."""
    return _derive(seed, "commitment", COMMITMENT_BYTES)


def is_public_key(point: bytes) -> bool:
    """Return whether these bytes are a compressed point of the curve."""
    try:
        ec.EllipticCurvePublicKey.from_encoded_point(_CURVE, point)
    except ValueError:
        return False
    return len(point) == PUBLIC_BYTES


def _private_key(secret: bytes) -> ec.EllipticCurvePrivateKey:
    number = int.from_bytes(_derive(secret, "private key", _SCALAR_BYTES), "big")
    return ec.derive_private_key(number % (_CURVE.group_order - 1) + 1, _CURVE)


def _derive(secret: bytes, label: str, length: int = 32) -> bytes:
    info = f"fedfm secure sum 1: {label}".encode()
    return HKDF(hashes.SHA256(), length=length, salt=None, info=info).derive(secret)
