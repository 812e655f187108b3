"""Keyed randomness: every draw is a function of (seed, purpose, key...), never of what ran before.

So results do not depend on the executor, the order of the clients, how a cohort is packed, or
whether a run was interrupted.
"""

import hashlib

import numpy as np


def _entropy(seed: int, purpose: str, key: tuple[int, ...]) -> int:
    text = repr((int(seed), purpose, *map(int, key))).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:16], "big")


def generator(seed: int, purpose: str, *key: int) -> np.random.Generator:
    """A numpy generator that belongs to (seed, purpose, *key) alone."""
    return np.random.Generator(np.random.PCG64(_entropy(seed, purpose, key)))


def torch_seed(seed: int, purpose: str, *key: int) -> int:
    """A seed for `torch.manual_seed` that belongs to (seed, purpose, *key) alone."""
    return _entropy(seed, purpose, key) % 2**63
