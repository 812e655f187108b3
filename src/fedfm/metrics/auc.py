"""AUC: the area under the ROC curve, one class against the rest, averaged over classes.

AUC is the probability that a sample of the class scores higher than another sample. This compares
pairs of samples, which no sum over clients has. Clients therefore count their samples in fixed
bins of the score, and pairs within a bin count one half. On one data set the exact value is used.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedfm.core.trees import Tree
from fedfm.methods.base import Batch
from fedfm.metrics.base import Metric, count_by, divide, is_between

BINS = 512
"""Intervals of the log-odds of a class: 0.008 wide at chance level, 0.16 at log-odds of 10."""
LARGEST, LINEAR = 20.0, 0.5
"""The bins cover log-odds up to 20 from chance; their width grows from about 0.5 on."""


@dataclass(frozen=True)
class Auc(Metric):
    """The area under the ROC curve, averaged over the classes that some samples have.

    Examples:
        >>> labels, logits = torch.tensor([0, 0, 1, 1]), torch.tensor([0.1, 0.4, 0.35, 0.8])
        >>> Auc().exact(torch.stack([-logits, logits], -1), labels)
        tensor(0.7500, dtype=torch.float64)
    """

    name = "auc"
    classes = 2
    low, high = 0.0, 1.0

    def statistic(self, batch: Batch) -> Tree:
        """Count samples of a class, and all samples, by bin of the class's score: [S, C, BINS]."""
        size, mask = batch.logits.shape[-1], batch.mask.unsqueeze(-1)
        logs = torch.log_softmax(batch.logits.float(), -1)
        odds = logs - torch.log1p(-logs.exp()) + math.log(max(1, size - 1))  # 0 at chance level
        odds = odds.nan_to_num(0.0, LARGEST, -LARGEST).clamp(-LARGEST, LARGEST)
        places = torch.asinh(odds / LINEAR) / math.asinh(LARGEST / LINEAR)  # from -1 to 1
        bins = ((places + 1) * (BINS / 2)).long().clamp(0, BINS - 1)
        classes = torch.arange(size, device=bins.device)
        cells = (classes * BINS + bins).flatten(1)
        ours = (batch.labels.unsqueeze(-1) == classes) & mask
        return {
            name: count_by(cells, counted.flatten(1), size * BINS).view(-1, size, BINS)
            for name, counted in (("positives", ours), ("samples", mask.expand_as(ours)))
        }

    def is_possible(self, total: Tree, samples: Tensor) -> Tensor:
        """Return whether each sample is counted once for every class, and is positive once [S]."""
        counted: Tensor = total["samples"].sum(-1)
        once = is_between(samples.unsqueeze(-1), counted, samples.unsqueeze(-1))
        right: Tensor = total["positives"].sum((-1, -2)).eq(samples)
        return is_between(0, total["positives"], total["samples"]) & once & right

    def value(self, total: Tree) -> Tensor:
        """Return the share of pairs in the right order [S]; pairs within a bin count one half."""
        positives = total["positives"].double()
        others = total["samples"] - positives
        below = others.cumsum(-1) - others / 2
        pairs = positives.sum(-1) * others.sum(-1)
        return divide((positives * below).sum(-1), pairs).nanmean(-1)

    def exact(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the mean over classes of the exact AUC []."""
        scores = torch.softmax(logits.double(), -1)
        areas = [area_under_curve(scores[:, c], labels == c) for c in range(scores.shape[1])]
        return torch.stack(areas).nanmean()


def area_under_curve(scores: Tensor, positive: Tensor) -> Tensor:
    """Return the AUC [] of scores [n], given which samples are positive [n]; ties count half."""
    _, places, counts = torch.unique(scores, return_inverse=True, return_counts=True)
    ranks = (counts.cumsum(0) - (counts - 1) / 2)[places].double()
    count = positive.sum()
    wins = (ranks * positive).sum() - count * (count + 1) / 2
    return divide(wins, count * (len(scores) - count))
