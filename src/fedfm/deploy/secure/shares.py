"""Rebuild secrets from Shamir shares as Flower creates them.

A share is its index x and, for each block of 16 bytes, the value at x of a polynomial over
GF(2^128) whose value at 0 is the block. The server rebuilds one secret per client from the shares
of the same few clients. Nearly all the work are the Lagrange weights; they are computed once.
"""

import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, reduce
from operator import xor
from typing import NamedTuple

from fedfm.deploy.errors import SecureError, insist
from fedfm.deploy.secure.keys import SECRET_BYTES

_INDEX = slice(0, 4)
_BLOCKS = (slice(4, 20), slice(20, 36))
_SHARE_BYTES = 36
_BITS = 128
_TRIALS = 64
"""Groups of clients that are tried for one secret: one client in three may lie, or two in six."""
_MODULUS = 1 << _BITS | 0b10000111  # x^128 + x^7 + x^2 + x + 1


def is_share(share: bytes, index: int) -> bool:
    """Return whether these bytes have the form of a share with that index."""
    return len(share) == _SHARE_BYTES and share[_INDEX] == index.to_bytes(4, "little")


class Rebuilt(NamedTuple):
    """A secret, and the clients whose shares of it are wrong."""

    secret: bytes
    wrong: frozenset[int]


def rebuild_secret(
    shares: Mapping[int, bytes], threshold: int, fits: Callable[[bytes], bool], owner: int
) -> Rebuilt:
    """Return the secret of `owner`, given shares by client; `fits` recognises the right secret.

    If some shares are wrong, other clients' shares are tried, as long as there are enough.
    """
    few = f"{len(shares)} shares of client {owner}'s secret arrived, {threshold} are needed"
    insist(len(shares) >= threshold, few)
    for trial, chosen in enumerate(_choices(sorted(shares), threshold)):
        right = [shares[client] for client in chosen]
        secret = _interpolate(right)[:SECRET_BYTES]
        if fits(secret):
            others = shares.keys() - {*chosen} if trial else ()  # a wrong one was among the first
            wrong = {client for client in others if not _fits_others(shares[client], right)}
            return Rebuilt(secret, frozenset(wrong))
    raise SecureError(f"the shares of clients {sorted(shares)} do not give client {owner}'s secret")


def _choices(clients: Sequence[int], threshold: int) -> Iterator[tuple[int, ...]]:
    """Yield groups of `threshold` clients: the first ones, then all or, of many, some at random."""
    yield tuple(clients[:threshold])
    if math.comb(len(clients), threshold) <= _TRIALS:
        yield from itertools.combinations(clients, threshold)
    elif len(clients) > threshold:
        draw = random.Random(0)
        yield from (tuple(sorted(draw.sample(clients, threshold))) for _ in range(_TRIALS))


def _fits_others(share: bytes, right: list[bytes]) -> bool:
    """Return whether a share is a value of the polynomial that the right ones give."""
    index = int.from_bytes(share[_INDEX], "little")
    return _interpolate(right, index) == share[_BLOCKS[0].start :]


def _interpolate(shares: list[bytes], at: int = 0) -> bytes:
    """Return the blocks of the value at some index; the secret is the value at 0."""
    weights = _weights(tuple(int.from_bytes(share[_INDEX], "little") for share in shares), at)
    value = b""
    for block in _BLOCKS:
        values = (int.from_bytes(share[block], "big") for share in shares)
        value += reduce(xor, map(_times, weights, values)).to_bytes(_BITS // 8, "big")
    return value


@lru_cache(maxsize=64)
def _weights(indices: tuple[int, ...], at: int) -> tuple[int, ...]:
    """Return the weight of each value in the value at an index; sums and differences are xor."""
    others = [[other for other in indices if other != index] for index in indices]
    above = [reduce(_times, (at ^ other for other in each), 1) for each in others]
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
