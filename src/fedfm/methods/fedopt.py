"""FedAdam, FedYogi and FedAdagrad: adaptive optimizers on the server.

S. J. Reddi, Z. Charles, M. Zaheer, Z. Garrett, K. Rush, J. Konečný, S. Kumar, H. B. McMahan.
Adaptive Federated Optimization. ICLR 2021 (Algorithm 2).

With D = sum_i p_i (y_i - x), the mean change of FedAvg:

m+ = beta_1 m + (1 - beta_1) D
v+ = v + D^2 (FedAdagrad), v - (1 - beta_2) D^2 sign(v - D^2) (FedYogi),
     beta_2 v + (1 - beta_2) D^2 (FedAdam)
x+ = x + eta m+ / (sqrt(v+) + tau)

m starts at 0 and v at tau^2, the smallest that the paper allows (from memory). There is no bias
correction. Google's runs used Keras's Adam instead, with v from 0, beta_2 = 0.999 and a bias
correction, which is an option of FedAdam. Buffers, such as the statistics of batch norm, are
averaged as in FedAvg.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedfm.core.errors import require
from fedfm.core.trees import Tree, tree_map
from fedfm.methods.base import Participation, Piece, Task


@dataclass(frozen=True)
class ServerOptimizer(Piece, ABC):
    """x+ = x + eta m+ / (sqrt(v+) + tau); a subclass says how v grows."""

    claims: ClassVar[frozenset[str]] = frozenset({"server optimizer"})

    lr: float = 0.1
    """eta, the server's learning rate; the paper tries powers of 10, and their square roots."""
    beta1: float = 0.9
    """How slowly the mean change m moves."""
    tau: float = 1e-3
    """What is added to the denominator: how adaptive the optimizer is."""

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        super().__post_init__()
        require(self.lr > 0, f"{self.name}: lr must be > 0, not {self.lr}")
        require(self.tau > 0, f"{self.name}: tau must be > 0, not {self.tau}")
        for key in ("beta1", "beta2"):
            value = getattr(self, key, 0.0)
            require(0 <= value < 1, f"{self.name}: {key} must be in [0, 1), not {value}")

    @abstractmethod
    def grow(self, v: Tensor, square: Tensor) -> Tensor:
        """Return v+, given v and D^2, all [...]."""

    def server_state(self, task: Task) -> Tree:
        """Return m, initially zero, and v, initially tau^2."""
        return {
            "mean": tree_map(torch.zeros_like, task.params),
            "square": tree_map(lambda p: torch.full_like(p, self.tau**2), task.params),
        }

    def step(
        self, server: Tree, delta: Tree, total: Tree, participation: Participation
    ) -> tuple[Tree, Tree]:
        """Step by eta m+ / (sqrt(v+) + tau)."""
        b = self.beta1
        mean = tree_map(lambda m, d: b * m + (1 - b) * d, server["mean"], delta)
        square = tree_map(lambda v, d: self.grow(v, d.square()), server["square"], delta)
        step = tree_map(lambda m, v: self.lr * m / (v.sqrt() + self.tau), mean, square)
        return {"mean": mean, "square": square}, step


@dataclass(frozen=True)
class FedAdagrad(ServerOptimizer):
    """Adagrad on the server: v+ = v + D^2.

    Examples:
        >>> FedAdagrad(lr=0.03).beta1  # no momentum, as in the paper
        0.0
    """

    name = "fedadagrad"

    beta1: float = 0.0
    """How slowly the mean change m moves."""

    def grow(self, v: Tensor, square: Tensor) -> Tensor:
        """Return v + D^2."""
        return v + square


@dataclass(frozen=True)
class FedYogi(ServerOptimizer):
    """Yogi on the server: v+ = v - (1 - beta_2) D^2 sign(v - D^2).

    Examples:
        >>> FedYogi(lr=0.03).beta2
        0.99
    """

    name = "fedyogi"

    beta2: float = 0.99
    """How slowly v moves."""

    def grow(self, v: Tensor, square: Tensor) -> Tensor:
        """Return v - (1 - beta_2) D^2 sign(v - D^2)."""
        return v - (1 - self.beta2) * square * (v - square).sign()


@dataclass(frozen=True)
class FedAdam(FedYogi):
    """Adam on the server: v+ = beta_2 v + (1 - beta_2) D^2.

    Examples:
        >>> from fedfm import FedFM, compose
        >>> compose([FedAdam(lr=0.03), FedFM()]).name
        'fedadam+fedfm'
    """

    name = "fedadam"

    bias_correction: bool = False
    """Whether v starts at 0, and step t, from 1, is multiplied by sqrt(1 - beta_2^t) / (1 -
    beta_1^t), as in Keras and in other libraries."""

    def grow(self, v: Tensor, square: Tensor) -> Tensor:
        """Return beta_2 v + (1 - beta_2) D^2."""
        return self.beta2 * v + (1 - self.beta2) * square

    def server_state(self, task: Task) -> Tree:
        """Return m and v; with a bias correction v is initially zero, as is the count of steps."""
        state = super().server_state(task)
        if not self.bias_correction:
            return state
        steps = torch.zeros((), dtype=torch.int64, device=task.device)
        return state | {"square": tree_map(torch.zeros_like, task.params), "steps": steps}

    def step(
        self, server: Tree, delta: Tree, total: Tree, participation: Participation
    ) -> tuple[Tree, Tree]:
        """Step by eta m+ / (sqrt(v+) + tau), with the bias correction if it is chosen."""
        kept, step = super().step(server, delta, total, participation)
        if not self.bias_correction:
            return kept, step
        count = server["steps"] + 1
        old = [1 - beta ** count.double() for beta in (self.beta1, self.beta2)]
        factor = old[1].sqrt() / old[0]
        return kept | {"steps": count}, tree_map(lambda s: s * factor.to(s.dtype), step)
