"""The confusion matrix: how many samples of each class are taken for which class."""

import math
from dataclasses import dataclass

from torch import Tensor

from fedfm.core.trees import Tree
from fedfm.methods.base import Batch
from fedfm.metrics.base import Metric, count_by, is_between


@dataclass(frozen=True)
class Confusion(Metric):
    """The confusion matrix: a row for each true class, a column for each predicted class.

    Examples:
        >>> import torch
        >>> labels, mask = torch.tensor([[0, 1, 1]]), torch.ones(1, 3, dtype=torch.bool)
        >>> logits = torch.eye(2)[torch.tensor([[0, 1, 0]])]
        >>> Confusion().statistic(Batch(logits, logits, labels, mask))["counts"]
        tensor([[[1, 0],
                 [1, 1]]])
    """

    name = "confusion"
    form = "matrix"
    low = 0.0

    def statistic(self, batch: Batch) -> Tree:
        """Count the samples by label and prediction: [S, C, C]."""
        size = batch.logits.shape[-1]
        pairs = batch.labels * size + batch.logits.argmax(-1)
        return {"counts": count_by(pairs, batch.mask, size * size).view(-1, size, size)}

    def is_possible(self, total: Tree, samples: Tensor) -> Tensor:
        """Return whether the counts are those of all samples [S]."""
        counts: Tensor = total["counts"]
        return is_between(0, counts, math.inf) & counts.sum((-1, -2)).eq(samples)

    def value(self, total: Tree) -> Tensor:
        """Return the counts [S, C, C]."""
        counts: Tensor = total["counts"]
        return counts
