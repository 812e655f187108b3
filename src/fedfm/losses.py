"""The loss of the task: weighted and smoothed cross-entropy, or a function of your own.

What pieces add to it is theirs (`Piece.loss`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedfm.core.errors import UserError, require
from fedfm.core.trees import Tree

LossFunction = Callable[[Tensor, Tensor], Tensor]
"""Maps logits [S, B, C] and labels [S, B] to a loss for each sample [S, B] or client [S]."""
CROSS_ENTROPY = "cross_entropy"


def cross_entropy(
    logits: Tensor, labels: Tensor, weights: Tensor | None = None, smoothing: float = 0.0
) -> Tensor:
    """Return the mean cross-entropy of each client's batch, as torch.nn.CrossEntropyLoss has it.

    Args:
        logits: [S, B, C].
        labels: [S, B], class indices.
        weights: [S, C] or [1, C], the weights of the classes.
        smoothing: The share of a label that is spread over all classes.

    Returns:
        [S]; with weights, the mean over a batch is weighted by them.
    """
    if weights is None:
        flat = logits.flatten(0, 1), labels.flatten()
        losses = F.cross_entropy(*flat, reduction="none", label_smoothing=smoothing)
        return losses.view(labels.shape).mean(1)
    chosen = weights.expand(len(labels), -1).gather(1, labels)
    surprise = -F.log_softmax(logits, dim=-1)
    weighted = chosen * surprise.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    if not smoothing:
        # also where a class with the logit -inf has no surprise
        return weighted.sum(1) / chosen.sum(1)
    spread = (weights.unsqueeze(1) * surprise).mean(-1)
    return ((1 - smoothing) * weighted + smoothing * spread).sum(1) / chosen.sum(1)


LOSSES: dict[str, LossFunction] = {CROSS_ENTROPY: cross_entropy}
"""The losses by their name in configs."""


@dataclass(frozen=True)
class TaskLoss:
    """The loss that clients train with, before the pieces add their terms."""

    function: LossFunction = cross_entropy
    label_smoothing: float = 0.0

    def __call__(self, logits: Tensor, labels: Tensor, held: Tree) -> Tensor:
        """Return each client's loss [S] of logits [S, B, C] and labels [S, B]."""
        if self.function is cross_entropy:
            return cross_entropy(logits, labels, held.get("weights"), self.label_smoothing)
        losses = self.function(logits, labels)
        if isinstance(losses, Tensor) and losses.shape == labels.shape:
            return losses.mean(1)
        if isinstance(losses, Tensor) and losses.shape == labels.shape[:1]:
            return losses
        returned = f"a tensor {list(losses.shape)}" if isinstance(losses, Tensor) else repr(losses)
        raise UserError(
            f"the loss {name_of(self.function)} must return a number for each sample, here a "
            f"tensor {list(labels.shape)}, or for each client, but returned {returned}"
        )


DEFAULT_LOSS = TaskLoss()
"""Plain cross-entropy."""


def name_of(function: LossFunction) -> str:
    """Return the name of a loss in configs and records."""
    return str(getattr(function, "__name__", type(function).__name__))


def make_class_weights(
    wanted: tuple[float, ...] | Literal["balanced"], labels: Sequence[Tensor], classes: int
) -> Tensor | None:
    """Return the weights of C classes for N clients, given each client's labels [n_i].

    A client's balanced weights are n_i / (C n_ic): it needs nobody else's counts. A class that it
    lacks has weight 0.

    Returns:
        [N, C], [1, C] if all clients have the same weights, or None if there are none.
    """
    if wanted == "balanced":
        counts = torch.stack([part.cpu().bincount(minlength=classes) for part in labels]).double()
        weights = counts.sum(1, keepdim=True) / (classes * counts)
        return torch.where(counts > 0, weights, 0.0)
    require(
        len(wanted) in (0, classes),
        f"class_weights has {len(wanted)} numbers, but the data have {classes} classes: give one "
        "for each",
    )
    return torch.tensor([wanted], dtype=torch.float64) if wanted else None
