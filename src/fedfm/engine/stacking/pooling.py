"""Max-pooling of stacked networks."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

LARGEST = 15
"""The largest window of the GPU kernel, which stores a position in one byte."""
VECTOR = 8
"""With at least this many channels, torch's max-pooling on a CPU uses vector instructions."""


class StackedMaxPool2d(nn.MaxPool2d):
    """[S*B, C, H, W] -> [S*B, C, H', W'], with a deterministic gradient on a GPU."""

    def forward(self, input: Tensor) -> Tensor:
        """Pool by the fastest implementation."""
        sizes: Any = self.kernel_size, self.stride, self.padding
        plain = self.dilation == 1 and not self.ceil_mode and not self.return_indices
        square = all(isinstance(size, int) for size in sizes)
        if plain and square and input.is_cuda and sizes[0] <= LARGEST:
            from fedfm.engine.kernels.pooling import max_pool2d

            return max_pool2d(input, *sizes)
        if plain and sizes == (2, 2, 0) and _narrow(input):
            return max_pool_halves(input)
        pooled: Tensor = super().forward(input)
        return pooled


def _narrow(x: Tensor) -> bool:
    channels, height, width = x.shape[-3:]
    return not x.is_cuda and channels < VECTOR and height % 2 == width % 2 == 0


def max_pool_halves(x: Tensor) -> Tensor:
    """Return the maximum of every 2x2 block, [N, C, 2h, 2w] -> [N, C, h, w].

    As in torch, the first of equal numbers gets the gradient: left before right within a row, then
    the upper row before the lower.
    """
    pooled: Tensor = _Halves.apply(x)  # type: ignore[no-untyped-call]  # torch does not type it
    return pooled


class _Halves(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        rows = torch.maximum(*_columns(x))
        ctx.save_for_backward(x, rows)
        return torch.maximum(*_rows(rows))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        x, rows = ctx.saved_tensors
        through_rows, through_x = torch.empty_like(rows), torch.empty_like(x)
        _route(grad, _rows(rows), _rows(through_rows))
        _route(through_rows, _columns(x), _columns(through_x))
        return through_x


def _columns(x: Tensor) -> tuple[Tensor, Tensor]:
    return x[..., 0::2], x[..., 1::2]


def _rows(x: Tensor) -> tuple[Tensor, Tensor]:
    return x[..., 0::2, :], x[..., 1::2, :]


def _route(grad: Tensor, pair: tuple[Tensor, Tensor], into: tuple[Tensor, Tensor]) -> None:
    """Route the gradient to the larger one of a pair.

    The mask has numbers 0 and 1, because multiplying by booleans takes twice the time.
    """
    to_first = torch.empty_like(grad)
    torch.ge(*pair, out=to_first)
    torch.mul(grad, to_first, out=into[0])
    torch.sub(grad, into[0], out=into[1])
