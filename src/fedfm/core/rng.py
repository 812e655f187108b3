"""Keyed randomness: every draw is a function of (seed, purpose, key...), never of what ran before.

Results therefore do not depend on the executor, the order of the clients, the packing of a cohort,
or whether a run was interrupted.
"""

import hashlib

import numpy as np


def _entropy(seed: int, purpose: str, key: tuple[int, ...]) -> int:
    text = repr((int(seed), purpose, *map(int, key))).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:16], "big")


def generator(seed: int, purpose: str, *key: int) -> np.random.Generator:
    """Return a numpy generator for (seed, purpose, *key)."""
    return np.random.Generator(np.random.PCG64(_entropy(seed, purpose, key)))


def torch_seed(seed: int, purpose: str, *key: int) -> int:
    """Return a seed for a `torch.Generator` for (seed, purpose, *key)."""
    return _entropy(seed, purpose, key) % 2**63
