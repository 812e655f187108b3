"""The base class of metrics: an additive statistic, and the value that its sum gives.

A metric is one file in this folder, registered in `METRICS` (metrics/__init__.py).
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedfm.core import trees
from fedfm.core.trees import Tree
from fedfm.methods.base import Batch

Form = Literal["number", "classes", "matrix"]
TINY = 1e-6
"""By how much rounding may put a value out of its range."""


@dataclass(frozen=True)
class Metric:
    """A metric: what is added up over samples and clients, and the value of such a sum.

    Subclass it as a frozen dataclass, set `name`, and override `statistic` and `value`. A subclass
    that inherits `statistic` shares it: it is computed once for both.

    Examples:
        The share of samples whose class is among the two most likely:

        >>> from fedfm import Training, simulate
        >>> @dataclass(frozen=True)
        ... class Top2(Metric):
        ...     name = "top2"
        ...
        ...     def statistic(self, batch):
        ...         best = batch.logits.topk(2, -1).indices  # [S, B, 2]
        ...         right = (best == batch.labels.unsqueeze(-1)).any(-1) & batch.mask
        ...         return {"right": right.sum(-1), "samples": batch.mask.sum(-1)}
        ...
        ...     def value(self, total):
        ...         return total["right"] / total["samples"]
        >>> few = Training(clients=3, rounds=1, epochs=1)
        >>> result = simulate(
        ...     "mlp", "digits", "fedavg", training=few, metrics=[Top2(), "auc"], executor="loop"
        ... )
        >>> sorted(result.test)
        ['accuracy', 'auc', 'top2']
    """

    name: ClassVar[str]
    """The name in configs, records and tables."""
    better: ClassVar[Literal["higher", "lower"]] = "higher"
    """Which values are better."""
    form: ClassVar[Form] = "number"
    """One number, a number for each class [C], or a matrix [C, C]."""
    percent: ClassVar[bool] = False
    """Whether people see it in percent."""
    classes: ClassVar[int] = 1
    """How many classes the samples must have, at least, for a value."""
    low: ClassVar[float] = -math.inf
    high: ClassVar[float] = math.inf
    """The smallest and the largest value that samples can give."""

    def statistic(self, batch: Batch) -> Tree:
        """Return statistics [S, ...] of a batch; they are summed over batches and clients.

        Samples with `mask` False are padding and must not count.
        """
        raise NotImplementedError

    def value(self, total: Tree) -> Tensor:
        """Return the value [S] of summed statistics [S, ...]; NaN where there is none.

        A metric of another `form` returns [S, C] or [S, C, C].
        """
        raise NotImplementedError

    def is_possible(self, total: Tree, samples: Tensor) -> Tensor:
        """Return whether that many samples [S] can give the statistics [S, ...]: bool [S].

        The server of a deployment leaves out clients whose statistics are impossible. By default
        numbers must be finite, and the value must lie between `low` and `high`.
        """
        fine = torch.stack([_all(torch.isfinite(leaf)) for leaf in trees.leaves(total)]).all(0)
        return fine & self.is_in_range(self.value(total))

    def is_in_range(self, value: Tensor) -> Tensor:
        """Return whether values [S, ...] are in the range, or there is none (NaN): bool [S]."""
        return _all((value >= self.low - TINY) & (value <= self.high + TINY) | value.isnan())

    def exact(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the exact value [] of one data set, given logits [n, C] and labels [n].

        Override it only if what the statistics give is not exact.
        """
        raise NotImplementedError


def is_between(low: Tensor | float, value: Tensor, high: Tensor | float) -> Tensor:
    """Return whether low <= value <= high in all numbers [S, ...] of a client: bool [S]."""
    return _all((value >= low) & (value <= high))


def _all(true: Tensor) -> Tensor:
    return true.flatten(1).all(1) if true.ndim > 1 else true


def divide(numerator: Tensor, denominator: Tensor) -> Tensor:
    """Return the quotient in double precision; NaN where the denominator is 0."""
    return torch.where(denominator > 0, numerator.double() / denominator, torch.nan)


def count_by(index: Tensor, counted: Tensor, size: int) -> Tensor:
    """Count by index: index [S, M] in 0..size-1 and counted [S, M] give [S, size]."""
    zeros = counted.new_zeros(len(index), size, dtype=torch.int64)
    return zeros.scatter_add_(1, index, counted.long())


def count_classes(batch: Batch) -> Tree:
    """Count by class the samples, the predictions and the correct predictions: [S, C] each."""
    size, predicted = batch.logits.shape[-1], batch.logits.argmax(-1)
    right = (predicted == batch.labels) & batch.mask
    return {
        "samples": count_by(batch.labels, batch.mask, size),
        "predicted": count_by(predicted, batch.mask, size),
        "right": count_by(batch.labels, right, size),
    }
