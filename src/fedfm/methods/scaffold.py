"""SCAFFOLD: control variates against client drift.

S. P. Karimireddy, S. Kale, M. Mohri, S. J. Reddi, S. U. Stich, A. T. Suresh. SCAFFOLD: Stochastic
Controlled Averaging for Federated Learning. ICML 2020 (Algorithm 1, option II; Eq. 3 to 5).
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedfm.core.trees import Tree, per_client, tree_map
from fedfm.methods.base import LocalRun, Model, Participation, Piece, Task


@dataclass(frozen=True)
class Scaffold(Piece):
    """Control variates against drift: gradient + c - c_i.

    Afterwards c_i+ = c_i - c + (x - y_i) / (a(K_i, rho) eta).

    Under momentum the corrections go through the velocity, so K_i steps move by a(K_i, rho)
    gradients and not by K_i: see docs/scaffold-with-momentum.md.

    Examples:
        >>> import torch
        >>> from fedfm.methods import Model, Task
        >>> task = Task(Model({"weight": torch.ones(3, 2)}, {}), classes=3, features=2)
        >>> Scaffold().client_state(task)["control"]["weight"].shape  # as large as the model
        torch.Size([3, 2])
    """

    name = "scaffold"
    step_cost = 1.1
    claims: ClassVar[frozenset[str]] = frozenset({"weights", "client drift correction"})
    shares_every_round = True
    needs_sgd = True
    needs_whole_model = True

    def server_state(self, task: Task) -> Tree:
        """Return the server's control variate c, initially zero."""
        return {"control": tree_map(torch.zeros_like, task.params)}

    def client_state(self, task: Task) -> Tree:
        """Return a client's control variate c_i, initially zero."""
        return {"control": tree_map(torch.zeros_like, task.params)}

    def download(self, server: Tree) -> Tree:
        """Send c to every client."""
        return server

    def prepare(self, client: Tree, received: Model, down: Tree) -> Tree:
        """Return the correction c - c_i."""
        return {"correction": tree_map(torch.sub, down["control"], client["control"])}

    def correct(self, grads: Tree, params: Tree, held: Tree) -> Tree:
        """Add c - c_i."""
        return tree_map(torch.add, grads, held["correction"])

    def finish(self, client: Tree, run: LocalRun, down: Tree) -> tuple[Tree, Tree]:
        """Send c_i+ - c_i = (x - y_i) / (a_i eta) - c, keep c_i+."""
        distance = run.accumulation * run.optimizer.lr

        def change(x: Tensor, y: Tensor, c: Tensor) -> Tensor:
            return (x - y) / per_client(distance, y) - c

        changes = tree_map(change, run.start.params, run.end.params, down["control"])
        kept = tree_map(torch.add, client["control"], changes)
        return {"change": changes}, {"control": kept}

    def weights(self, weights: Tensor, run: LocalRun) -> Tensor:
        """Weight all clients equally: x+ = x + mean (y_i - x)."""
        return torch.ones_like(weights)

    def step(
        self, server: Tree, delta: Tree, total: Tree, participation: Participation
    ) -> tuple[Tree, Tree]:
        """Update c+ = c + sum (c_i+ - c_i) / N; the step is the mean change."""
        everyone = participation.population
        control = tree_map(lambda c, d: c + d / everyone, server["control"], total["change"])
        return {"control": control}, delta
