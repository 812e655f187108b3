"""Take mapped tensors apart so that their gradients are put together in one pass over memory.

`query, key, value = parts.permute(2, 0, 3, 1, 4)` is how most transformers split a product. Torch
stacks the three gradients along the first dimension and then moves that to where it was, element by
element.
"""

from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.overrides import TorchFunctionMode

UNBIND = (torch.unbind, Tensor.unbind)
Unbind = Callable[[list[Tensor]], list[Tensor]]


def unbind(x: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    """Do what torch.unbind does; the gradient has the order of x's dimensions in memory."""
    parts: tuple[Tensor, ...] = _Unbind.apply(x, dim % x.ndim)  # type: ignore[no-untyped-call]  # torch does not type it
    return parts


class _Unbind(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int) -> tuple[Tensor, ...]:
        ctx.dim, ctx.shape, ctx.strides = dim, x.shape, x.stride()
        return x.unbind(dim)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        order = sorted(range(len(ctx.shape)), key=lambda dim: -ctx.strides[dim])
        others = [dim - (dim > ctx.dim) for dim in order if dim != ctx.dim]
        outer = prod(ctx.shape[dim] for dim in order[: order.index(ctx.dim)])
        joined = torch.cat([grad.permute(others).reshape(outer, -1) for grad in grads], 1)
        whole = joined.view([ctx.shape[dim] for dim in order])
        return whole.permute([order.index(dim) for dim in range(len(order))]), None


class UnbindInPlace(TorchFunctionMode):
    """Lets `unbind`, and the unpacking of tensors, leave a map over clients.

    `leave` calls a function on whole tensors [S, ...] and maps its results; None if no tensor is
    mapped.
    """

    def __init__(self, leave: Callable[[Unbind, list[Tensor]], list[Tensor] | None]) -> None:
        super().__init__()
        self.leave = leave

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run a function, or `unbind` on all clients together."""
        kwargs = kwargs or {}
        if func in UNBIND and args:
            x, dim = args[0], kwargs.get("dim", args[1] if len(args) > 1 else 0)
            parts = self.leave(lambda whole: [*unbind(whole[0], dim % x.ndim + 1)], [x])
            if parts is not None:
                return tuple(parts)
        return func(*args, **kwargs)
