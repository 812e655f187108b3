"""Log loss: the mean cross-entropy of the predicted probabilities."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedfm.core.trees import Tree
from fedfm.methods.base import Batch
from fedfm.metrics.base import Metric, divide

LARGEST = 100.0
"""A probability below e^-100 counts as e^-100, so that every sum is finite."""


@dataclass(frozen=True)
class LogLoss(Metric):
    """The mean of -log p of the true class.

    Examples:
        >>> LogLoss().value({"loss": torch.tensor([1.5]), "samples": torch.tensor([3])})
        tensor([0.5000], dtype=torch.float64)
    """

    name = "log_loss"
    better = "lower"
    low, high = 0.0, LARGEST

    def statistic(self, batch: Batch) -> Tree:
        """Sum the losses [S], and count the samples [S]."""
        logs = torch.log_softmax(batch.logits.double(), -1)
        losses = -logs.gather(-1, batch.labels.unsqueeze(-1)).squeeze(-1)
        losses = losses.nan_to_num(LARGEST).clamp(max=LARGEST)
        return {"loss": (losses * batch.mask).sum(-1), "samples": batch.mask.sum(-1)}

    def is_possible(self, total: Tree, samples: Tensor) -> Tensor:
        """Return whether the mean loss is between 0 and the largest one [S]."""
        counted: Tensor = total["samples"]
        return super().is_possible(total, samples) & counted.eq(samples)

    def value(self, total: Tree) -> Tensor:
        """Return loss / samples [S]."""
        return divide(total["loss"], total["samples"])
