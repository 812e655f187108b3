"""Secrets of 31 bytes, and what is derived from them: key pairs, mask keys, commitments.

Whatever is handed over in shares is such a secret: with its padding it is two blocks of the secret
sharing, whose time per block is most of what a sum of few numbers takes.
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
    """A new secret from the system's random source."""
    return token_bytes(SECRET_BYTES)


def public_key(secret: bytes) -> bytes:
    """The public half of the P-256 key pair that belongs to a secret; a compressed point."""
    point = _private_key(secret).public_key()
    return point.public_bytes(Encoding.X962, PublicFormat.CompressedPoint)


def agreed(secret: bytes, peer: bytes) -> bytes:
    """What a secret and a peer's public key, or the other way round, give both (Diffie-Hellman)."""
    point = ec.EllipticCurvePublicKey.from_encoded_point(_CURVE, peer)
    return generate_shared_key(_private_key(secret), point)


def pair_mask_key(secret: bytes, peer: bytes, purpose: str) -> bytes:
    """The key [32 bytes] of the mask that two clients share for a purpose."""
    return _derived(agreed(secret, peer), f"pair mask: {purpose}")


def self_mask_key(seed: bytes, purpose: str) -> bytes:
    """The key [32 bytes] of the mask that is a client's own for a purpose."""
    return _derived(seed, f"self mask: {purpose}")


def commitment(seed: bytes) -> bytes:
    """What a seed put together from shares must agree with; says nothing about the seed."""
    return _derived(seed, "commitment", COMMITMENT_BYTES)


def is_public_key(point: bytes) -> bool:
    """Whether these bytes are a point of the curve, compressed."""
    try:
        ec.EllipticCurvePublicKey.from_encoded_point(_CURVE, point)
    except ValueError:
        return False
    return len(point) == PUBLIC_BYTES


def _private_key(secret: bytes) -> ec.EllipticCurvePrivateKey:
    number = int.from_bytes(_derived(secret, "private key", _SCALAR_BYTES), "big")
    return ec.derive_private_key(number % (_CURVE.group_order - 1) + 1, _CURVE)


def _derived(secret: bytes, label: str, length: int = 32) -> bytes:
    info = f"fedfm secure sum 1: {label}".encode()
    return HKDF(hashes.SHA256(), length=length, salt=None, info=info).derive(secret)
