"""FedSMOO: FedDyn with a perturbation on which all clients agree.

Y. Sun, L. Shen, S. Chen, L. Ding, D. Tao. Dynamic Regularized Sharpness Aware Minimization in
Federated Learning: Approaching Global Consistency and Smooth Landscape. ICML 2023, arXiv 2305.11584
(Algorithm 1; read in public code, the paper's server step from memory).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedfm.core.trees import Tree, client_norms, share, tree_map
from fedfm.methods.base import LocalRun, Model, Participation, Task
from fedfm.methods.feddyn import FedDyn
from fedfm.methods.fedsam import LEAST, ascend, check_ascent


@dataclass(frozen=True)
class FedSMOO(FedDyn):
    """FedDyn, with the gradient at y + e: e = radius (g - mu_i - s) / ||g - mu_i - s||.

    mu_i+ = mu_i + e - s after every step. A client sends u_i = mu_i - e, with its last e, besides
    its model; the server sends s = radius mean u_i / ||mean u_i||, zero at first.

    This is the paper's form. The authors' code leaves e out of u_i: `last_offset = false`. Two
    models go up and two down.

    Examples:
        >>> FedSMOO(alpha=0.05).pull
        0.05
    """

    name = "fedsmoo"
    step_cost = 2.5
    moves = frozenset({"dual", "offset"})

    alpha: float = 0.1
    """The weight of FedDyn's regulariser."""
    radius: float = 0.1
    """The length of the ascent."""
    last_offset: bool = True
    """Whether u_i is mu_i - e (the paper), or mu_i (the authors' code)."""

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        super().__post_init__()
        check_ascent(self.name, self.radius)

    def server_state(self, task: Task) -> Tree:
        """Return FedDyn's h, and s, initially zero."""
        return super().server_state(task) | {"shared": tree_map(torch.zeros_like, task.params)}

    def client_state(self, task: Task) -> Tree:
        """Return FedDyn's h_i, and mu_i, initially zero."""
        return super().client_state(task) | {"dual": tree_map(torch.zeros_like, task.params)}

    def download(self, server: Tree) -> Tree:
        """Send s to every client."""
        return {"shared": server["shared"]}

    def prepare(self, client: Tree, received: Model, down: Tree) -> Tree:
        """Return FedDyn's constant, s, mu_i, and memory for the last e."""
        offset = tree_map(torch.zeros_like, client["dual"])
        moving = {"dual": client["dual"], "offset": offset}
        return super().prepare(client, received, down) | moving | {"shared": down["shared"]}

    def perturb(self, grads: Tree, params: Tree, held: Tree) -> Tree:
        """Return e."""
        dual, shared = held["dual"], held["shared"]
        ahead = {name: g - dual[name] - shared[name] for name, g in grads.items()}
        return ascend(ahead, params, self.radius)

    def advance(self, held: Tree, grads: Tree, offset: Tree) -> Tree:
        """Return mu_i + e - s, and e."""
        dual = tree_map(lambda mu, e, s: mu + e - s, held["dual"], offset, held["shared"])
        return {"dual": dual, "offset": offset}

    def finish(self, client: Tree, run: LocalRun, down: Tree) -> tuple[Tree, Tree]:
        """Send u_i = mu_i - e, or mu_i; keep mu_i and FedDyn's h_i."""
        _, kept = super().finish(client, run, down)
        dual = run.moved["dual"]
        sent = tree_map(torch.sub, dual, run.moved["offset"]) if self.last_offset else dual
        return {"dual": sent}, kept | {"dual": dual}

    def step(
        self, server: Tree, delta: Tree, total: Tree, participation: Participation
    ) -> tuple[Tree, Tree]:
        """Step as FedDyn; s is the mean of u_i at the length of the radius."""
        kept, step = super().step(server, delta, total, participation)
        mean = tree_map(lambda u: u / participation.clients, total["dual"])
        scale = self.radius / client_norms(share(mean)).clamp(min=LEAST)

        def rescale(u: Tensor) -> Tensor:
            return u * scale.to(u)

        return kept | {"shared": tree_map(rescale, mean)}, step
