"""FedAvgM: momentum on the server.

T.-M. H. Hsu, H. Qi, M. Brown. Measuring the Effects of Non-Identical Data Distribution for
Federated Visual Classification. 2019 (Sec. 3.1).
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedfm.core.errors import require
from fedfm.core.trees import Tree, tree_map
from fedfm.methods.base import Participation, Piece, Task


@dataclass(frozen=True)
class FedAvgM(Piece):
    """Momentum on the server: v = beta v + sum_i p_i (y_i - x); x+ = x + v.

    There is no damping and no Nesterov step. Buffers are averaged as in FedAvg.

    Examples:
        >>> FedAvgM(beta=0.7)
        FedAvgM(beta=0.7)
    """

    name = "fedavgm"
    claims: ClassVar[frozenset[str]] = frozenset({"server optimizer"})

    beta: float = 0.9
    """The server's momentum; the paper tries {0, 0.7, 0.9, 0.97, 0.99, 0.997}."""

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        super().__post_init__()
        require(0 <= self.beta < 1, f"fedavgm: beta must be in [0, 1), not {self.beta}")

    def server_state(self, task: Task) -> Tree:
        """Return the velocity v, initially zero."""
        return {"velocity": tree_map(torch.zeros_like, task.params)}

    def step(
        self, server: Tree, delta: Tree, total: Tree, participation: Participation
    ) -> tuple[Tree, Tree]:
        """Add the mean change to the velocity, which is the step."""
        velocity = tree_map(lambda v, d: self.beta * v + d, server["velocity"], delta)
        return {"velocity": velocity}, velocity
