"""Means whose gradient is not written out.

The gradient of a mean is one number for all the positions that it is over. Torch writes it out in
the order of the tensor's dimensions. If channels are last in memory, everything that is added to it
on the way back, as in a network with shortcuts, then meets two orders: element by element.
"""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.overrides import TorchFunctionMode

MEANS = (torch.mean, Tensor.mean)
Mean = Callable[[list[Tensor]], list[Tensor]]


def mean(x: Tensor, dims: Sequence[int], keepdim: bool = False) -> Tensor:
    """Do what torch.mean does; the gradient repeats its numbers without storing them again."""
    result: Tensor = _Mean.apply(x, dims, keepdim)  # type: ignore[no-untyped-call]  # torch does not type it
    return result


class _Mean(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dims: Sequence[int], keepdim: bool) -> Tensor:
        ctx.shape, ctx.dims = x.shape, sorted(dim % x.ndim for dim in dims)
        ctx.keepdim = keepdim
        return x.mean(ctx.dims, keepdim)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        grad = grad / prod(ctx.shape[dim] for dim in ctx.dims)
        if not ctx.keepdim:
            for dim in ctx.dims:
                grad = grad.unsqueeze(dim)
        return grad.expand(ctx.shape), None, None


class ExpandedMean(TorchFunctionMode):
    """Lets means over dimensions, and pooling to one position, leave a map over clients.

    `leave` calls a function on whole tensors [S, ...] and maps its results; None if no tensor is
    mapped.
    """

    def __init__(self, leave: Callable[[Mean, list[Tensor]], list[Tensor] | None]) -> None:
        super().__init__()
        self.leave = leave

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run a function, or `mean` on all clients together."""
        kwargs = kwargs or {}
        wanted = read_mean(*args, **kwargs) if func in MEANS else read_pooling(func, args, kwargs)
        if wanted is not None:
            x, dims, keepdim = wanted
            results = self.leave(lambda whole: [mean(whole[0], dims, keepdim)], [x])
            if results is not None:
                return results[0]
        return func(*args, **kwargs)


Wanted = tuple[Tensor, list[int], bool]
"""A tensor, the dimensions of the mean, counted from the end, and whether they are kept."""


def read_mean(
    input: Tensor, dim: Any = None, keepdim: bool = False, **others: Any
) -> Wanted | None:
    """Return what a call of torch.mean asks for; None if it is over everything or asks for more."""
    dims = [dim] if isinstance(dim, int) else [*(dim or ())]
    if not dims or any(value is not None for value in others.values()):
        return None
    return input, [each % input.ndim - input.ndim for each in dims], keepdim


def read_pooling(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Wanted | None:
    """Return what a call asks for that pools images to one position; None if it does not."""
    if func is not F.adaptive_avg_pool2d or kwargs or args[1] not in (1, (1, 1), [1, 1]):
        return None
    return args[0], [-2, -1], True
