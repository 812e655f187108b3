"""FedACG: clients start ahead of the global model, where its momentum will take it.

G. Kim, J. Kim, B. Han. Communication-Efficient Federated Learning with Accelerated Client Gradient.
CVPR 2024, arXiv 2201.03172 (Algorithm 1).
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedfm.core.errors import require
from fedfm.core.trees import Tree, tree_map
from fedfm.methods.base import LocalRun, Model, Participation, Piece, Task


@dataclass(frozen=True)
class FedACG(Piece):
    """Momentum m at the server; clients start at w = x + lambda m, with a pull towards w.

    Local loss + beta/2 ||y - w||^2; then m+ = lambda m + mean (y_i - w) and x+ = x + m+. The server
    sends w instead of x, so nothing more is sent than in FedAvg. x is evaluated and saved. The
    authors' code leaves out the 1/2: set twice its beta here.

    Examples:
        >>> from fedfm import FedFM, compose
        >>> compose([FedACG(momentum=0.9), FedFM()]).moves_start
        True
    """

    name = "fedacg"
    step_cost = 1.1
    claims: ClassVar[frozenset[str]] = frozenset(
        {"weights", "server optimizer", "client drift correction"}
    )
    shares_every_round = True

    momentum: float = 0.85
    """lambda, the server's momentum."""
    strength: float = 0.001
    """beta, the pull towards w."""

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        super().__post_init__()
        require(0 <= self.momentum < 1, f"fedacg: momentum must be in [0, 1), not {self.momentum}")
        require(self.strength >= 0, f"fedacg: strength must be >= 0, not {self.strength}")

    @property
    def pull(self) -> float:
        """Beta."""
        return self.strength

    def server_state(self, task: Task) -> Tree:
        """Return the momentum m, initially zero."""
        return {"momentum": tree_map(torch.zeros_like, task.params)}

    def start(self, server: Tree, params: Tree) -> Tree:
        """Return w = x + lambda m."""
        return tree_map(lambda x, m: x + self.momentum * m, params, server["momentum"])

    def prepare(self, client: Tree, received: Model, down: Tree) -> Tree:
        """Return w."""
        return {"reference": received.params}

    def correct(self, grads: Tree, params: Tree, held: Tree) -> Tree:
        """Add beta (y - w)."""
        beta, ahead = self.strength, held["reference"]
        return tree_map(lambda g, y, w: g + beta * (y - w), grads, params, ahead)

    def weights(self, weights: Tensor, run: LocalRun) -> Tensor:
        """Weight all clients equally: mean (y_i - w)."""
        return torch.ones_like(weights)

    def step(
        self, server: Tree, delta: Tree, total: Tree, participation: Participation
    ) -> tuple[Tree, Tree]:
        """Step by m+ = lambda m + mean (y_i - w)."""
        momentum = tree_map(lambda m, d: self.momentum * m + d, server["momentum"], delta)
        return {"momentum": momentum}, momentum
