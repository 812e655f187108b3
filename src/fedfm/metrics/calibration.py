"""Calibration error: how far confidence and accuracy are apart.

Guo et al., On Calibration of Modern Neural Networks (ICML 2017), Eq. 3.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedfm.core.trees import Tree
from fedfm.methods.base import Batch
from fedfm.metrics.base import TINY, Metric, count_by, divide, is_between

BINS = 15
"""Intervals of confidence, of equal width."""


@dataclass(frozen=True)
class CalibrationError(Metric):
    """The expected calibration error (ECE): |accuracy - confidence|, averaged over 15 bins.

    Confidence is the probability of the predicted class. A bin counts by its samples.

    Examples:
        >>> bins = {"samples": [[6, 4]], "right": [[3, 4]], "confidence": [[3.6, 3.8]]}
        >>> CalibrationError().value({name: torch.tensor(bin) for name, bin in bins.items()})
        tensor([0.0800], dtype=torch.float64)
    """

    name = "calibration_error"
    better = "lower"
    low, high = 0.0, 1.0

    def statistic(self, batch: Batch) -> Tree:
        """Count samples and correct ones by bin, and sum their confidence: [S, BINS] each."""
        confidence, predicted = torch.softmax(batch.logits.double(), -1).nan_to_num(0.0).max(-1)
        bins = ((confidence * BINS).ceil().long() - 1).clamp(0, BINS - 1)
        inside = bins.unsqueeze(-1) == torch.arange(BINS, device=bins.device)
        return {
            "samples": count_by(bins, batch.mask, BINS),
            "right": count_by(bins, (predicted == batch.labels) & batch.mask, BINS),
            "confidence": (inside * (confidence * batch.mask).unsqueeze(-1)).sum(1),
        }

    def is_possible(self, total: Tree, samples: Tensor) -> Tensor:
        """Return whether 0 <= right and confidence <= samples of each bin, of all samples [S]."""
        most: Tensor = total["samples"]
        fits = is_between(0, total["right"], most)
        fits &= is_between(-TINY, total["confidence"], most + TINY)
        return fits & most.sum(-1).eq(samples)

    def value(self, total: Tree) -> Tensor:
        """Return sum_b |right_b - confidence_b| / samples [S]."""
        gaps = (total["right"].double() - total["confidence"]).abs()
        return divide(gaps.sum(-1), total["samples"].sum(-1))
