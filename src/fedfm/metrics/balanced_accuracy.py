"""Balanced accuracy: the mean over classes of the accuracy on the samples of a class."""

from dataclasses import dataclass

from torch import Tensor

from fedfm.core.trees import Tree
from fedfm.methods.base import Batch
from fedfm.metrics.base import Metric, count_classes, divide


@dataclass(frozen=True)
class BalancedAccuracy(Metric):
    """The accuracy on the samples of a class, averaged over the classes that have samples.

    Examples:
        >>> import torch
        >>> counts = {"samples": torch.tensor([[8, 2]]), "right": torch.tensor([[8, 1]])}
        >>> BalancedAccuracy().value(counts)
        tensor([0.7500], dtype=torch.float64)
    """

    name = "balanced_accuracy"
    percent = True

    def statistic(self, batch: Batch) -> Tree:
        """Count samples, predictions and correct predictions by class: [S, C] each."""
        return count_classes(batch)

    def value(self, total: Tree) -> Tensor:
        """Return the mean recall [S]."""
        return divide(total["right"], total["samples"]).nanmean(-1)
