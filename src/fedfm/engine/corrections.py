"""Corrections of the gradient as a part of the optimizer's step.

Left to themselves, a piece's few operations on every parameter cost as much time on a GPU as half
a training step. But most corrections are linear: gradient + a params + c, where the number a and
the tensors c stay the same for a round. Whether one is, shows when it is called with `Linear` in
place of tensors; then a is a decay, and c is added in the optimizer's one pass over memory.
"""

import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedfm.core.sgd import Sgd
from fedfm.core.trees import Tree
from fedfm.engine.layout import copy_arranged
from fedfm.engine.objective import Objective

Number = int | float


@dataclass(frozen=True, eq=False)
class Linear:
    """A leaf's gradient * (the gradient) + param * (the parameter) + constant, not worked out.

    What is not linear raises TypeError or AttributeError.
    """

    gradient: float
    param: float
    constant: Tensor | Number = 0.0

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """torch.add(gradient, tensor) and the like."""
        operation = _OPERATIONS.get(function.__name__)
        if operation is None or kwargs:
            return NotImplemented
        return operation(*(cls(0.0, 0.0, arg) if isinstance(arg, Tensor) else arg for arg in args))

    def __add__(self, other: "Linear | Tensor | Number") -> "Linear":
        """The sum, coefficient by coefficient."""
        more = other if isinstance(other, Linear) else Linear(0.0, 0.0, other)
        return Linear(
            self.gradient + more.gradient, self.param + more.param, self.constant + more.constant
        )

    def __mul__(self, factor: Number) -> "Linear":
        """A multiple by a number."""
        if not isinstance(factor, Number):
            return NotImplemented
        return Linear(self.gradient * factor, self.param * factor, self.constant * factor)

    __radd__, __rmul__ = __add__, __mul__

    def __neg__(self) -> "Linear":
        """Minus it."""
        return self * -1

    def __sub__(self, other: "Linear | Tensor | Number") -> "Linear":
        """The difference."""
        return self + -1 * other

    def __rsub__(self, other: "Tensor | Number") -> "Linear":
        """The difference to a constant."""
        return -self + other

    def __truediv__(self, divisor: Number) -> "Linear":
        """A part of it."""
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
    """gradient + decay params + constants; [S, ...] for the leaves that have one."""

    decay: float
    constants: Tree

    def like(self, other: "Correction") -> bool:
        """Whether the two differ in the constants' values alone."""
        return (self.decay, self.constants.keys()) == (other.decay, other.constants.keys())

    def into(self, sgd: Sgd) -> Sgd:
        """SGD with this decay in addition to its own."""
        return replace(sgd, weight_decay=sgd.weight_decay + self.decay)


def find_linear_correction(objective: Objective, params: Tree) -> Correction | None:
    """The corrections of all pieces together, for parameters [S, ...]; None if not linear."""
    try:
        found = objective.correct(
            dict.fromkeys(params, Linear(1.0, 0.0)), dict.fromkeys(params, Linear(0.0, 1.0))
        )
    except (TypeError, AttributeError):
        return None
    if found.keys() != params.keys() or not all(isinstance(f, Linear) for f in found.values()):
        return None
    if len(slopes := {(f.gradient, f.param) for f in found.values()}) > 1:
        return None
    ((gradient, decay),) = slopes
    constants = {name: _spread(f.constant, params[name]) for name, f in found.items() if _is(f)}
    return Correction(decay, constants) if gradient == 1 else None


def _is(found: Linear) -> bool:
    return isinstance(found.constant, Tensor) or found.constant != 0


def _spread(constant: Tensor | Number, like: Tensor) -> Tensor:
    return copy_arranged(torch.as_tensor(constant).to(like).expand_as(like))
