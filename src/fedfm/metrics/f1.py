"""F1: the harmonic mean of precision and recall, by class and averaged over classes."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedfm.core.trees import Tree
from fedfm.metrics.balanced_accuracy import BalancedAccuracy
from fedfm.metrics.base import Form, divide


@dataclass(frozen=True)
class ClassF1(BalancedAccuracy):
    """F1 of every class; NaN for a class that is neither a label nor predicted.

    Examples:
        >>> import torch
        >>> counts = {"samples": [[8, 2, 0]], "predicted": [[9, 1, 0]], "right": [[8, 1, 0]]}
        >>> counts = {name: torch.tensor(count) for name, count in counts.items()}
        >>> ClassF1().value(counts)
        tensor([[0.9412, 0.6667,    nan]], dtype=torch.float64)
    """

    name = "class_f1"
    form: ClassVar[Form] = "classes"

    def value(self, total: Tree) -> Tensor:
        """Return 2 TP / (samples + predicted) of each class [S, C]."""
        return divide(2 * total["right"], total["samples"] + total["predicted"])


@dataclass(frozen=True)
class MacroF1(ClassF1):
    """F1 averaged over the classes that are labels or predictions, as in scikit-learn.

    Examples:
        >>> import torch
        >>> counts = {"samples": [[8, 2, 0]], "predicted": [[9, 1, 0]], "right": [[8, 1, 0]]}
        >>> counts = {name: torch.tensor(count) for name, count in counts.items()}
        >>> MacroF1().value(counts)
        tensor([0.8039], dtype=torch.float64)
    """

    name = "macro_f1"
    form = "number"

    def value(self, total: Tree) -> Tensor:
        """Return the mean over classes [S]."""
        return super().value(total).nanmean(-1)
