"""Anchors: class-wise means of features, shared by all clients.

The common part of FedFM (Eq. 8 and 9 of its paper) and FedProto: clients sum their features by
class, and the server turns the sums into global anchors and sends them to all clients.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedfm.core.errors import require
from fedfm.core.trees import Tree
from fedfm.methods.base import Batch, Piece, Task


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Return the mean of values [S, B] where mask [S, B] is true -> [S]; 0 if it nowhere is."""
    kept = values.masked_fill(~mask, 0.0)
    return kept.sum(-1) / mask.sum(-1).clamp(min=1)


@dataclass(frozen=True)
class Anchored(Piece):
    """A piece whose loss uses anchors that all clients share: the base of FedFM and FedProto.

    Examples:
        >>> from fedfm import FedFM
        >>> FedFM(anchors="uniform").needs_class_holders
        True
    """

    claims: ClassVar[frozenset[str]] = frozenset({"anchors"})
    measures: ClassVar[Literal["before", "after"] | None] = "before"
    counted: ClassVar[frozenset[str]] = frozenset({"count", "holders"})

    strength: float = 1.0
    """lambda, the weight of the loss."""
    anchors: Literal["weighted", "uniform"] = "weighted"
    """Weighted by class counts (Eq. 9), or a plain mean over clients that sends no counts."""
    start_round: int = 0
    """T_s: the number of rounds of plain averaging before the loss starts."""

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        super().__post_init__()
        require(self.strength >= 0, f"{self.name}: strength must be >= 0, not {self.strength}")
        require(
            self.anchors in ("weighted", "uniform"),
            f"{self.name}: anchors must be 'weighted' or 'uniform', not '{self.anchors}'",
        )
        require(self.start_round >= 0, f"{self.name}: start_round must be >= 0")

    @property
    def first_round(self) -> int:
        """The first round with the loss."""
        return self.start_round

    @property
    def needs_class_holders(self) -> bool:
        """Whether the server must know how many clients hold each class."""
        return self.anchors == "uniform"

    def server_state(self, task: Task) -> Tree:
        """Global anchors [C, d] and which classes have one [C]."""
        like = next(iter(task.params.values()))
        return {
            "anchors": like.new_zeros(task.classes, task.features),
            "seen": torch.zeros(task.classes, dtype=torch.bool, device=like.device),
        }

    def statistic(self, batch: Batch) -> Tree:
        """Class sums [S, C, d] and counts [S, C] of raw features (Eq. 8)."""
        classes = batch.logits.shape[-1]
        one_hot = torch.arange(classes, device=batch.labels.device) == batch.labels.unsqueeze(-1)
        one_hot = one_hot & batch.mask.unsqueeze(-1)
        sums = one_hot.mT.to(batch.features.dtype) @ batch.features
        return {"sum": sums, "count": one_hot.sum(-2)}

    def report(self, statistic: Tree) -> Tree:
        """Return sums and counts ("weighted"), or means and which classes exist ("uniform")."""
        if self.anchors == "weighted":
            return statistic
        counts = statistic["count"]
        means = statistic["sum"] / counts.clamp(min=1).unsqueeze(-1)
        return {"mean": means, "holders": (counts > 0).to(torch.uint8)}

    def absorb(self, server: Tree, total: Tree, clients: int) -> Tree:
        """Return the new global anchors (Eq. 9); a class without samples keeps its old anchor."""
        old, seen = server["anchors"], server["seen"]
        if self.anchors == "weighted":
            number = total["count"]
            new = total["sum"] / torch.where(number > 0, number, 1).unsqueeze(-1)
        else:
            number = total["holders"]
            absent = torch.where(seen, clients - number, torch.zeros_like(number))
            shares = (number + absent).clamp(min=1).unsqueeze(-1)
            new = (total["mean"] + absent.unsqueeze(-1) * old) / shares
        held = number > 0
        return {"anchors": torch.where(held.unsqueeze(-1), new, old), "seen": seen | held}

    def download(self, server: Tree) -> Tree:
        """Send the global anchors to every client."""
        return server

    def mean_loss(self, losses: Tensor, labels: Tensor, seen: Tensor) -> Tensor:
        """Return lambda times the mean of losses [S, B] over samples with an anchor -> [S]."""
        has_anchor = seen.expand(len(labels), -1).gather(-1, labels)
        return self.strength * masked_mean(losses, has_anchor)
