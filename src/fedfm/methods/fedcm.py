"""FedCM: every local step goes along the direction of the last round, too.

J. Xu, S. Wang, L. Wang, A. C.-C. Yao. FedCM: Federated Learning with Client-level Momentum. 2021,
arXiv 2106.10874 (Algorithm 2; read in public code, the paper from memory).
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedfm.core.errors import require
from fedfm.core.trees import Tree, per_client, tree_map
from fedfm.methods.base import LocalRun, Model, Participation, Piece, Task


@dataclass(frozen=True)
class FedCM(Piece):
    """Client-level momentum: alpha gradient + (1 - alpha) V in place of the gradient.

    V = - sum_i p_i (y_i - x) / (a(K_i, rho) eta) over the last round's cohort, zero at first; for
    plain SGD a(K_i, rho) is the number of steps K_i, as in the paper. Under local momentum V goes
    through the velocity, so dividing by K_i would make it grow from round to round: see
    docs/scaffold-with-momentum.md. Weight decay is not multiplied by alpha, but is a part of V.

    Clients may take unequal numbers of steps, so V does not follow from the mean change and is sent
    besides it: two models up, two down. x+ = sum_i p_i y_i, which is FedAvg's for alpha = 1.

    Examples:
        >>> from fedfm import FedFM, compose
        >>> compose([FedCM(alpha=0.05), FedFM()]).name
        'fedcm+fedfm'
    """

    name = "fedcm"
    step_cost = 1.1
    claims: ClassVar[frozenset[str]] = frozenset({"client drift correction"})
    shares_every_round = True
    needs_sgd = True
    needs_whole_model = True

    alpha: float = 0.1
    """The weight of the client's own gradient."""

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        super().__post_init__()
        require(0 < self.alpha <= 1, f"{self.name}: alpha must be in (0, 1], not {self.alpha}")

    def server_state(self, task: Task) -> Tree:
        """Return V, initially zero."""
        return {"direction": tree_map(torch.zeros_like, task.params)}

    def download(self, server: Tree) -> Tree:
        """Send V to every client."""
        return {"direction": server["direction"]}

    def prepare(self, client: Tree, received: Model, down: Tree) -> Tree:
        """Return (1 - alpha) V."""
        return {"pull": tree_map(lambda v: (1 - self.alpha) * v, down["direction"])}

    def correct(self, grads: Tree, params: Tree, held: Tree) -> Tree:
        """Return alpha gradient + (1 - alpha) V."""
        return tree_map(lambda g, v: self.alpha * g + v, grads, held["pull"])

    def finish(self, client: Tree, run: LocalRun, down: Tree) -> tuple[Tree, Tree]:
        """Send n_i (x - y_i) / (a_i eta)."""
        weight = run.samples / (run.accumulation * run.optimizer.lr)

        def direction(x: Tensor, y: Tensor) -> Tensor:
            return (x - y) * per_client(weight, y)

        return {"direction": tree_map(direction, run.start.params, run.end.params)}, client

    def step(
        self, server: Tree, delta: Tree, total: Tree, participation: Participation
    ) -> tuple[Tree, Tree]:
        """Keep V; the step is the mean change."""
        direction = tree_map(lambda total: total / participation.samples, total["direction"])
        return {"direction": direction}, delta
