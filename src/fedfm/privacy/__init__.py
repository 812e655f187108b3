"""Differential privacy for clients: clipping, Gaussian noise and accounting.

A client's answer is a tree of tensors that are summed over clients. It is clipped to a bounded norm
and noised before it is sent; docs/privacy.md describes the guarantee.
"""

from fedfm.privacy.accounting import (
    Epsilon,
    compute_epsilon,
    compute_epsilon_alone,
    describe_epsilon,
    noise_for,
)
from fedfm.privacy.config import Privacy
from fedfm.privacy.gaussian_mechanism import add_noise, clip
from fedfm.privacy.noise import Normals, keyed_normals, secret_normals

__all__ = [
    "Epsilon",
    "Normals",
    "Privacy",
    "add_noise",
    "clip",
    "compute_epsilon",
    "compute_epsilon_alone",
    "describe_epsilon",
    "keyed_normals",
    "noise_for",
    "secret_normals",
]
