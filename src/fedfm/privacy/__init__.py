"""Differential privacy for clients: clipping, Gaussian noise, and what it adds up to.

A client's answer is a tree of tensors that add up over clients. It is scaled down to a bounded
length and carries its share of the noise before it leaves; docs/privacy.md says what that promises.
"""

from fedfm.privacy.accounting import (
    Epsilon,
    compute_epsilon,
    compute_epsilon_alone,
    describe,
    noise_for,
)
from fedfm.privacy.config import Privacy
from fedfm.privacy.mechanism import add_noise, clip
from fedfm.privacy.noise import Normals, keyed_normals, secret_normals

__all__ = [
    "Epsilon",
    "Normals",
    "Privacy",
    "add_noise",
    "clip",
    "compute_epsilon",
    "compute_epsilon_alone",
    "describe",
    "keyed_normals",
    "noise_for",
    "secret_normals",
]
