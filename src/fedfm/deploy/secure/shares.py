"""Rebuild secrets from Shamir shares as Flower creates them.

A share is its index x and, for each block of 16 bytes, the value at x of a polynomial over
GF(2^128) whose value at 0 is the block. The server rebuilds one secret per client from the shares
of the same few clients. Nearly all the work are the Lagrange weights; they are computed once.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache, reduce
from operator import xor

from fedfm.deploy.errors import insist
from fedfm.deploy.secure.keys import SECRET_BYTES

_INDEX = slice(0, 4)
_BLOCKS = (slice(4, 20), slice(20, 36))
_SHARE_BYTES = 36
_BITS = 128
_MODULUS = 1 << _BITS | 0b10000111  # x^128 + x^7 + x^2 + x + 1


def is_share(share: bytes, index: int) -> bool:
    """Return whether these bytes have the form of a share with that index."""
    return len(share) == _SHARE_BYTES and share[_INDEX] == index.to_bytes(4, "little")


def rebuild_secret(
    shares: Mapping[int, bytes], threshold: int, fits: Callable[[bytes], bool], owner: int
) -> bytes:
    """Return the secret of `owner`, given shares by client; `fits` recognises the right secret."""
    few = f"{len(shares)} shares of client {owner}'s secret arrived, {threshold} are needed"
    insist(len(shares) >= threshold, few)
    chosen = sorted(shares)[:threshold]
    secret = _interpolate([shares[client] for client in chosen])
    insist(fits(secret), f"the shares of clients {chosen} do not give client {owner}'s secret")
    return secret


def _interpolate(shares: list[bytes]) -> bytes:
    weights = _weights(tuple(int.from_bytes(share[_INDEX], "little") for share in shares))
    secret = b""
    for block in _BLOCKS:
        values = (int.from_bytes(share[block], "big") for share in shares)
        secret += reduce(xor, map(_times, weights, values)).to_bytes(_BITS // 8, "big")
    return secret[:SECRET_BYTES]


@lru_cache(maxsize=64)
def _weights(indices: tuple[int, ...]) -> tuple[int, ...]:
    """Return the weight of each value in the value at 0; sums and differences are xor."""
    others = [[other for other in indices if other != index] for index in indices]
    above = [reduce(_times, each, 1) for each in others]
    below = [
        reduce(_times, (index ^ other for other in each), 1)
        for index, each in zip(indices, others, strict=True)
    ]
    return tuple(_times(up, _inverse(down)) for up, down in zip(above, below, strict=True))


def _times(one: int, other: int) -> int:
    product = 0
    while other:
        product ^= one if other & 1 else 0
        one <<= 1
        other >>= 1
    return _reduce_polynomial(product)


def _inverse(element: int) -> int:
    """Run Euclid's algorithm: modulo the modulus, `ours * element` always equals `left`."""
    left, right, ours, theirs = element, _MODULUS, 1, 0
    while left != 1:
        shift = left.bit_length() - right.bit_length()
        if shift < 0:
            left, right, ours, theirs, shift = right, left, theirs, ours, -shift
        left ^= right << shift
        ours ^= theirs << shift
    return _reduce_polynomial(ours)


def _reduce_polynomial(polynomial: int) -> int:
    while (extra := polynomial.bit_length() - _MODULUS.bit_length()) >= 0:
        polynomial ^= _MODULUS << extra
    return polynomial
