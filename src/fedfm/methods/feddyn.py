"""FedDyn: a dynamic regulariser that aligns the clients' optima with the server's.

D. A. E. Acar, Y. Zhao, R. Matas, M. Mattina, P. Whatmough, V. Saligrama. Federated Learning
Based on Dynamic Regularization. ICLR 2021 (Algorithm 1).
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedfm.core.errors import require
from fedfm.core.trees import Tree, tree_map
from fedfm.methods.base import LocalRun, Model, Participation, Piece, Task


def step_by_drift(
    alpha: float, drift: Tree, delta: Tree, participation: Participation
) -> tuple[Tree, Tree]:
    """Return the server's h+ = h - alpha (S/N) delta, as its state, and delta - h+ / alpha."""
    drift = tree_map(lambda h, d: h - alpha * participation.fraction * d, drift, delta)
    return {"drift": drift}, tree_map(lambda d, h: d - h / alpha, delta, drift)


@dataclass(frozen=True)
class FedDyn(Piece):
    """A dynamic regulariser: gradient - h_i + alpha (w - x).

    Afterwards h_i+ = h_i - alpha (y_i - x).

    Examples:
        >>> FedDyn(alpha=0.1).pull
        0.1
    """

    name = "feddyn"
    step_cost = 1.1
    claims: ClassVar[frozenset[str]] = frozenset({"weights", "client drift correction"})
    shares_every_round = True
    needs_whole_model = True

    alpha: float = 0.01
    """The weight of the regulariser; the paper tries {0.1, 0.01, 0.001}."""

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        super().__post_init__()
        require(self.alpha > 0, f"{self.name}: alpha must be > 0, not {self.alpha}")

    @property
    def pull(self) -> float:
        """Alpha."""
        return self.alpha

    def server_state(self, task: Task) -> Tree:
        """Return the server's h, initially zero."""
        return {"drift": tree_map(torch.zeros_like, task.params)}

    def client_state(self, task: Task) -> Tree:
        """Return a client's h_i, initially zero."""
        return {"drift": tree_map(torch.zeros_like, task.params)}

    def prepare(self, client: Tree, received: Model, down: Tree) -> Tree:
        """Return the part of the correction that does not change: - h_i - alpha x."""
        fixed = tree_map(lambda h, x: -h - self.alpha * x, client["drift"], received.params)
        return {"fixed": fixed}

    def correct(self, grads: Tree, params: Tree, held: Tree) -> Tree:
        """Add alpha w - h_i - alpha x."""
        return tree_map(lambda g, w, f: g + self.alpha * w + f, grads, params, held["fixed"])

    def finish(self, client: Tree, run: LocalRun, down: Tree) -> tuple[Tree, Tree]:
        """Keep h_i+ = h_i - alpha (y_i - x); send nothing besides the model."""

        def update(h: Tensor, y: Tensor, x: Tensor) -> Tensor:
            return h - self.alpha * (y - x)

        drift = tree_map(update, client["drift"], run.end.params, run.start.params)
        return {}, {"drift": drift}

    def weights(self, weights: Tensor, run: LocalRun) -> Tensor:
        """Weight all clients equally: mean (y_i - x)."""
        return torch.ones_like(weights)

    def step(
        self, server: Tree, delta: Tree, total: Tree, participation: Participation
    ) -> tuple[Tree, Tree]:
        """Step with h+ = h - alpha (S/N) mean (y_i - x); x+ = mean y_i - h+ / alpha."""
        return step_by_drift(self.alpha, server["drift"], delta, participation)
