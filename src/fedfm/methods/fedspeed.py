"""FedSpeed: a corrected proximal term and steps with a look at the worst point nearby.

Y. Sun, L. Shen, T. Huang, L. Ding, D. Tao. FedSpeed: Larger Local Interval, Less Communication
Round, and Higher Generalization Accuracy. ICLR 2023, arXiv 2302.10429 (Algorithm 1; from memory,
except for what its public code shows).
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedfm.core.errors import require
from fedfm.core.trees import Tree, tree_map
from fedfm.methods.base import LocalRun, Model, Participation, Piece, Task
from fedfm.methods.feddyn import step_by_drift
from fedfm.methods.fedsam import ascend, check_ascent


@dataclass(frozen=True)
class FedSpeed(Piece):
    """Steps by (1 - mix) g1 + mix g2 - h_i + strength (y - x); models amended by h_i are averaged.

    g1 is the gradient at y, and g2 the one at y + radius g1 / ||g1||. Afterwards h_i+ = h_i -
    strength (y_i - x), and the client sends y_i - h_i+ / strength in place of its model, so no more
    than FedAvg's. x+ is the plain mean of what is sent. The paper's lambda is 1 / strength, its
    alpha is `mix`.

    This is the paper's form. In the authors' later code clients send their models, and the server
    subtracts the mean of h over all N clients from their mean, as FedDyn does: `over_all = true`.

    Examples:
        >>> FedSpeed(strength=0.05).pull
        0.05
    """

    name = "fedspeed"
    step_cost = 2.2
    claims: ClassVar[frozenset[str]] = frozenset({"weights", "client drift correction"})
    shares_every_round = True
    needs_whole_model = True

    strength: float = 0.1
    """The pull towards x, 1 / lambda."""
    radius: float = 0.1
    """The length of the ascent."""
    mix: float = 1.0
    """The share of g2 in the step."""
    over_all: bool = False
    """Whether the server subtracts the mean of h over all clients instead (the authors' code)."""

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        super().__post_init__()
        require(self.strength > 0, f"fedspeed: strength must be > 0, not {self.strength}")
        require(0 <= self.mix <= 1, f"fedspeed: mix must be in [0, 1], not {self.mix}")
        check_ascent(self.name, self.radius)

    @property
    def pull(self) -> float:
        """The strength."""
        return self.strength

    def server_state(self, task: Task) -> Tree:
        """Return the mean of h over all clients, initially zero, if it is needed."""
        return {"drift": tree_map(torch.zeros_like, task.params)} if self.over_all else {}

    def client_state(self, task: Task) -> Tree:
        """Return a client's h_i, initially zero."""
        return {"drift": tree_map(torch.zeros_like, task.params)}

    def prepare(self, client: Tree, received: Model, down: Tree) -> Tree:
        """Return the part of the correction that does not change: - h_i - strength x."""
        fixed = tree_map(lambda h, x: -h - self.strength * x, client["drift"], received.params)
        return {"fixed": fixed}

    def perturb(self, grads: Tree, params: Tree, held: Tree) -> Tree:
        """Return radius g1 / ||g1||."""
        return ascend(grads, params, self.radius)

    def blend(self, first: Tree, second: Tree) -> Tree:
        """Return (1 - mix) g1 + mix g2."""
        if self.mix == 1:
            return second
        return tree_map(lambda a, b: (1 - self.mix) * a + self.mix * b, first, second)

    def correct(self, grads: Tree, params: Tree, held: Tree) -> Tree:
        """Add strength y - h_i - strength x."""
        return tree_map(lambda g, y, f: g + self.strength * y + f, grads, params, held["fixed"])

    def finish(self, client: Tree, run: LocalRun, down: Tree) -> tuple[Tree, Tree]:
        """Keep h_i+ = h_i - strength (y_i - x)."""

        def update(h: Tensor, y: Tensor, x: Tensor) -> Tensor:
            return h - self.strength * (y - x)

        drift = tree_map(update, client["drift"], run.end.params, run.start.params)
        return {}, {"drift": drift}

    def amend(self, change: Tree, client: Tree) -> Tree:
        """Send (y_i - x) - h_i+ / strength, or y_i - x."""
        if self.over_all:
            return change
        return tree_map(lambda d, h: d - h / self.strength, change, client["drift"])

    def weights(self, weights: Tensor, run: LocalRun) -> Tensor:
        """Weight all clients equally."""
        return torch.ones_like(weights)

    def step(
        self, server: Tree, delta: Tree, total: Tree, participation: Participation
    ) -> tuple[Tree, Tree]:
        """Step by what clients sent, less the mean of h+ over all clients / strength if chosen."""
        if not self.over_all:
            return server, delta
        return step_by_drift(self.strength, server["drift"], delta, participation)
