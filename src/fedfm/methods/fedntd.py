"""FedNTD: what the received model knows of the classes that are not true is not forgotten.

G. Lee, M. Jeong, Y. Shin, S. Bae, S.-Y. Yun. Preservation of the Global Knowledge by Not-True
Distillation in Federated Learning. NeurIPS 2022 (Eq. 3 and 4).
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedfm.core.errors import require
from fedfm.core.trees import Tree
from fedfm.methods.base import Batch, Model, Piece


def not_true_logits(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the logits without the one of the true class: [S, B, C], [S, B] -> [S, B, C - 1]."""
    classes = torch.arange(logits.shape[-1] - 1, device=logits.device)
    others = classes + (classes >= labels.unsqueeze(-1))
    return logits.gather(-1, others)


@dataclass(frozen=True)
class FedNTD(Piece):
    """Distillation over the classes that are not true: + beta tau^2 KL(q_received || q_local).

    q is the softmax of the logits without the true class, divided by tau. The received model is
    frozen and runs in evaluation mode, with the batch-norm statistics that it was sent with; the
    authors' code leaves it in the mode of the model that it was copied from.

    Code of other papers has (1 - b) times the cross-entropy plus b times the divergence. There is
    no option for it: for SGD it is beta = b / (1 - b), with lr multiplied by 1 - b and weight decay
    divided by it.

    Examples:
        >>> from fedfm import FedFM, compose
        >>> compose([FedNTD(strength=0.3), FedFM()]).name
        'fedntd+fedfm'
    """

    name = "fedntd"
    step_cost = 1.5

    strength: float = 1.0
    """beta, the weight of the distillation."""
    temperature: float = 1.0
    """tau."""

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        super().__post_init__()
        require(self.strength >= 0, f"fedntd: strength must be >= 0, not {self.strength}")
        require(self.temperature > 0, f"fedntd: temperature must be > 0, not {self.temperature}")

    def prepare(self, client: Tree, received: Model, down: Tree) -> Tree:
        """Return the received model."""
        return {"received": received._asdict()}

    def views(self, held: Tree) -> dict[str, Model]:
        """Return the received model, which also processes every batch."""
        return {"received": Model(**held["received"])}

    def loss(self, batch: Batch, held: Tree) -> Tensor:
        """Return beta tau^2 times the mean divergence [S]."""
        theirs, ours = (
            F.log_softmax(not_true_logits(logits, batch.labels) / self.temperature, dim=-1)
            for logits in (batch.view_logits["received"], batch.logits)
        )
        divergence = F.kl_div(ours, theirs, reduction="none", log_target=True).sum(-1)
        return self.strength * self.temperature**2 * divergence.mean(-1)
