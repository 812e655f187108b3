"""Balanced accuracy: the mean over classes of the accuracy on the samples of a class."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedfm.core.trees import Tree
from fedfm.methods.base import Batch
from fedfm.metrics.base import Metric, count_classes, divide, is_between


@dataclass(frozen=True)
class BalancedAccuracy(Metric):
    """The accuracy on the samples of a class, averaged over the classes that have samples.

    Examples:
        >>> counts = {"samples": torch.tensor([[8, 2]]), "right": torch.tensor([[8, 1]])}
        >>> BalancedAccuracy().value(counts)
        tensor([0.7500], dtype=torch.float64)
    """

    name = "balanced_accuracy"
    percent = True
    low, high = 0.0, 1.0

    def statistic(self, batch: Batch) -> Tree:
        """Count samples, predictions and correct predictions by class: [S, C] each."""
        return count_classes(batch)

    def is_possible(self, total: Tree, samples: Tensor) -> Tensor:
        """Return whether no class has more right samples than samples or predictions [S]."""
        right = total["right"]
        fits = is_between(0, right, total["samples"]) & is_between(0, right, total["predicted"])
        counts = (total[name].sum(-1) for name in ("samples", "predicted"))
        return fits & torch.stack([count == samples for count in counts]).all(0)

    def value(self, total: Tree) -> Tensor:
        """Return the mean recall [S]."""
        return divide(total["right"], total["samples"]).nanmean(-1)
