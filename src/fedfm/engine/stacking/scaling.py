"""Products of activations and a client's own numbers, as a block scaled by a parameter has them.

Mapped over clients, such a product is a slow operation, because one factor is broadcast, and its
gradient needs another product and a sum over samples. One kernel each does the same.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._C import _functorch as functorch
from torch.overrides import TorchFunctionMode

Leave = Callable[[Callable[[int, list[Tensor]], list[Tensor]], list[Tensor]], list[Tensor]]
"""Computes mapped tensors as whole ones [S, ...]: see `ClientMap`."""
PRODUCTS = (torch.mul, torch.multiply, Tensor.mul, Tensor.multiply, Tensor.__mul__, Tensor.__rmul__)


class FusedScaling(TorchFunctionMode):
    """Lets kernels compute activations [B, ..., C, ...] times numbers [C], both of one client."""

    def __init__(self, leave: Leave) -> None:
        super().__init__()
        self.leave = leave

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run a function, a product of this kind by a kernel."""
        if func in PRODUCTS and not kwargs and len(args) == 2:
            for x, scale in (args, args[::-1]):
                axis = find_axis(x, scale)
                if axis is not None:
                    return self._scale(x, scale, axis)
        return func(*args, **(kwargs or {}))

    def _scale(self, x: Tensor, scale: Tensor, axis: int) -> Tensor:
        from fedfm.engine.kernels.columns import scale_columns

        def run(size: int, tensors: list[Tensor]) -> list[Tensor]:
            whole, numbers = tensors
            y = scale_columns(whole.movedim(axis, -1), numbers.reshape(size, -1))
            return [y.movedim(-1, axis)]

        (y,) = self.leave(run, [x, scale])
        return y


def find_axis(x: Any, scale: Any) -> int | None:
    """Return the axis of x, from the end, along which the numbers lie; None if there is none.

    It is the last one in x's memory, so that nothing has to be copied.
    """
    if not (_is_mapped(x) and _is_mapped(scale) and x.ndim >= max(2, scale.ndim)):
        return None
    long = [i - scale.ndim for i, size in enumerate(scale.shape) if size > 1]
    if len(long) != 1 or x.shape[long[0]] != scale.numel() or x.numel() == scale.numel():
        return None
    clients_first = functorch.get_unwrapped(x).movedim(functorch.maybe_get_bdim(x), 0)
    return long[0] if clients_first.movedim(long[0], -1).is_contiguous() else None


def _is_mapped(x: Any) -> bool:
    """Return whether x is a tensor of a kernel's type, on a GPU, with an own value per client."""
    return (
        isinstance(x, Tensor)
        and functorch.is_batchedtensor(x)
        and x.is_cuda
        and x.dtype in (torch.float32, torch.bfloat16, torch.float16)
    )
