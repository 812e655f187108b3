"""Fuse corrections of the gradient into the optimizer's step.

On a GPU, a piece's few operations on every parameter take as long as half a training step. But most
corrections are linear: b gradient + a params + c, with numbers a and b and tensors c that are
constant in a round. To find out, a correction is called with `Linear` objects instead of tensors.
If it is linear, a becomes a weight decay, and b and c are applied in the optimizer's one pass over
memory. That holds for SGD, unless the gradient is clipped after its correction
(`GraphCohort.folds_corrections`).
"""

import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedfm.core import trees
from fedfm.core.trees import Tree
from fedfm.engine.layout import copy_arranged
from fedfm.engine.objective import Objective
from fedfm.optim import Sgd

Number = int | float


@dataclass(frozen=True, eq=False)
class Linear:
    """The expression gradient * (the gradient) + param * (the parameter) + constant of a leaf.

    Operations that are not linear raise TypeError or AttributeError.
    """

    gradient: float
    param: float
    constant: Tensor | Number = 0.0

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Handle torch.add(gradient, tensor) and the like."""
        operation = _OPERATIONS.get(function.__name__)
        if operation is None or kwargs:
            return NotImplemented
        return operation(*(cls(0.0, 0.0, arg) if isinstance(arg, Tensor) else arg for arg in args))

    def __add__(self, other: "Linear | Tensor | Number") -> "Linear":
        """Add coefficient by coefficient."""
        more = other if isinstance(other, Linear) else Linear(0.0, 0.0, other)
        return Linear(
            self.gradient + more.gradient, self.param + more.param, self.constant + more.constant
        )

    def __mul__(self, factor: Number) -> "Linear":
        """Multiply by a number."""
        if not isinstance(factor, Number):
            return NotImplemented
        return Linear(self.gradient * factor, self.param * factor, self.constant * factor)

    __radd__, __rmul__ = __add__, __mul__

    def __neg__(self) -> "Linear":
        """Negate."""
        return self * -1

    def __sub__(self, other: "Linear | Tensor | Number") -> "Linear":
        """Subtract."""
        return self + -1 * other

    def __rsub__(self, other: "Tensor | Number") -> "Linear":
        """Subtract from a constant."""
        return -self + other

    def __truediv__(self, divisor: Number) -> "Linear":
        """Divide by a number."""
        if not isinstance(divisor, Number):
            return NotImplemented
        return self * (1 / divisor)


_OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
}


@dataclass(frozen=True)
class Correction:
    """factor gradient + decay params + constants; [S, ...] for the leaves that have a constant."""

    decay: float
    constants: Tree
    factor: float = 1.0

    def like(self, other: "Correction") -> bool:
        """Return whether the two differ only in the values of the constants."""
        ours, theirs = ((c.decay, c.factor, c.constants.keys()) for c in (self, other))
        return ours == theirs

    def into(self, sgd: Sgd) -> Sgd:
        """Return SGD with this decay added to its own."""
        return replace(sgd, weight_decay=sgd.weight_decay + self.decay)


def _hide(leaf: Tensor) -> Any:
    """Return something that cannot be added or multiplied."""
    return object()


def find_linear_correction(objective: Objective, params: Tree) -> Correction | None:
    """Return the correction by all pieces, for parameters [S, ...]; None if it is not linear.

    A correction that uses values that change in every step is not linear: `_hide` makes it fail.
    """
    objective = objective.replace_moved(trees.tree_map(_hide, objective.moved))
    try:
        grads = objective.correct(
            dict.fromkeys(params, Linear(1.0, 0.0)), dict.fromkeys(params, Linear(0.0, 1.0))
        )
    except (TypeError, AttributeError):
        return None
    if grads.keys() != params.keys() or not all(isinstance(g, Linear) for g in grads.values()):
        return None
    if len(slopes := {(g.gradient, g.param) for g in grads.values()}) > 1:
        return None
    ((gradient, decay),) = slopes
    constants = {
        name: copy_arranged(torch.as_tensor(g.constant).to(params[name]).expand_as(params[name]))
        for name, g in grads.items()
        if isinstance(g.constant, Tensor) or g.constant != 0
    }
    return Correction(decay, constants, gradient) if gradient else None
