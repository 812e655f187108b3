"""MOON: features near the global model's and away from the client's own previous ones.

Q. Li, B. He, D. Song. Model-Contrastive Federated Learning. CVPR 2021 (Eq. 3 and 4).
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedfm.core.errors import require
from fedfm.core.trees import Tree, per_client, tree_map
from fedfm.methods.base import Batch, LocalRun, Model, Piece, Task


@dataclass(frozen=True)
class Moon(Piece):
    """Features pulled to the global model's and pushed away from the client's previous ones.

    + mu CE([sim(f, f_global), sim(f, f_previous)] / tau, 0), cosine similarity, no projection head.

    The global and the previous local model are frozen, in evaluation mode. A client that takes part
    for the first time has no previous model: the received one is used, and the gradient is zero.

    Examples:
        >>> Moon(mu=1.0)
        Moon(mu=1.0, tau=0.5)
    """

    name = "moon"
    step_cost = 2.0
    shares_every_round = True

    mu: float = 5.0
    """The weight of the contrastive loss; the paper's best of {0.1, 1, 5, 10} on CIFAR-10."""
    tau: float = 0.5
    """The temperature, as in the paper."""

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        super().__post_init__()
        require(self.mu >= 0, f"moon: mu must be >= 0, not {self.mu}")
        require(self.tau > 0, f"moon: tau must be > 0, not {self.tau}")

    def client_state(self, task: Task) -> Tree:
        """Return the client's previous model, and whether there is one."""
        like = next(iter(task.params.values()))
        return {
            "model": tree_map(torch.zeros_like, task.model._asdict()),
            "exists": torch.zeros((), dtype=torch.bool, device=like.device),
        }

    def prepare(self, client: Tree, received: Model, down: Tree) -> Tree:
        """Return the received and the previous model."""
        fresh = received._asdict()

        def choose(previous: Tensor, new: Tensor) -> Tensor:
            return torch.where(per_client(client["exists"], previous), previous, new)

        return {"received": fresh, "previous": tree_map(choose, client["model"], fresh)}

    def views(self, held: Tree) -> dict[str, Model]:
        """Return both frozen models."""
        return {name: Model(**model) for name, model in held.items()}

    def loss(self, batch: Batch, held: Tree) -> Tensor:
        """Return the cross-entropy of the two similarities against the global model."""
        near, far = (
            F.cosine_similarity(batch.features, batch.views[name], dim=-1) / self.tau
            for name in ("received", "previous")
        )
        return self.mu * F.softplus(far - near).mean(-1)

    def finish(self, client: Tree, run: LocalRun, down: Tree) -> tuple[Tree, Tree]:
        """Keep the trained model."""
        return {}, {"model": run.end._asdict(), "exists": torch.ones_like(client["exists"])}
