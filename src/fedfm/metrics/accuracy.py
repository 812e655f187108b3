"""Accuracy: the share of samples that are classified correctly."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedfm.core.trees import Tree
from fedfm.methods.base import Batch
from fedfm.metrics.base import Metric, is_between


@dataclass(frozen=True)
class Accuracy(Metric):
    """The share of samples that are classified correctly.

    Examples:
        >>> Accuracy().value({"right": torch.tensor([3, 0]), "samples": torch.tensor([4, 0])})
        tensor([0.7500,    nan], dtype=torch.float64)
    """

    name = "accuracy"
    percent = True
    low, high = 0.0, 1.0

    def statistic(self, batch: Batch) -> Tree:
        """Count the correctly classified samples and all samples: [S] each."""
        right = (batch.logits.argmax(-1) == batch.labels) & batch.mask
        return {"right": right.sum(-1), "samples": batch.mask.sum(-1)}

    def is_possible(self, total: Tree, samples: Tensor) -> Tensor:
        """Return whether 0 <= right <= samples [S]."""
        counted: Tensor = total["samples"]
        return is_between(0, total["right"], counted) & counted.eq(samples)

    def value(self, total: Tree) -> Tensor:
        """Return right / samples [S]."""
        return torch.div(total["right"].double(), total["samples"])
