"""Sources of noise: keyed in a simulation, secret on a real client.

The server knows every seed of a run, so a real client's noise must not come from one. It comes from
AES-256 in counter mode. Each block of draws has a new key from the operating system, which is then
forgotten: there is nothing to guess, to find later, or to inherit by a forked process.
"""

import math
import os
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from fedfm.core.errors import missing_package_error
from fedfm.core.rng import generator

Normals = Callable[[int], Tensor]
"""A client's source of noise: returns the given number of draws from N(0, 1), float64."""


def keyed_normals(seed: int, round: int, clients: Sequence[int], purpose: str) -> list[Normals]:
    """Return each client's source in a simulation, a function of seed, purpose, round, client."""
    generators = [generator(seed, f"privacy {purpose}", round, client) for client in clients]
    return [_from_numpy(source) for source in generators]


def _from_numpy(source: np.random.Generator) -> Normals:
    return lambda count: torch.from_numpy(source.standard_normal(count))


def secret_normals(count: int) -> Tensor:
    """Draw a real client's noise, which nobody can reproduce."""
    return box_muller(_secret_bytes(16 * ((count + 1) // 2)))[:count]


def box_muller(randomness: bytes) -> Tensor:
    """Turn 16 n random bytes into draws [2 n] from N(0, 1), float64, of 53 bits each."""
    bits = torch.frombuffer(bytearray(randomness), dtype=torch.int64)
    uniform = ((bits >> 11) & (2**53 - 1)).double().mul_(2.0**-53).view(2, -1)
    radius = torch.log1p(-uniform[0]).mul_(-2).sqrt_()
    angle = uniform[1] * (2 * math.pi)
    return torch.cat([radius * angle.cos(), radius * angle.sin()])


def _secret_bytes(size: int) -> bytes:
    try:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    except ImportError as problem:
        raise missing_package_error("secret noise needs cryptography", "privacy") from problem
    cipher = Cipher(algorithms.AES(os.urandom(32)), modes.CTR(os.urandom(16)))
    return cipher.encryptor().update(bytes(size))
