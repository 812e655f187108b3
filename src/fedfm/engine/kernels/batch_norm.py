"""Batch normalisation of S clients at once, each over its own rows and with its own weights.

Channels are last in memory, so a client is a matrix [M, C] of M = B * H * W rows. Where a program
can keep all rows of some channels in registers, memory is passed over once. Otherwise the rows are
cut into chunks: one kernel reduces every chunk, and the next combines these partial results by
itself before it goes over the elements again. How a client is cut depends on M and C, never on S,
and nothing is added atomically: a client's results do not depend on its company.
"""

from functools import cache
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from fedfm.engine.kernels._batch_norm import (
    chunk_moments,
    chunk_slopes,
    input_gradient,
    normalise,
)

RESIDENT = 16384
"""Elements that a program may keep in registers."""
TILE = 2048
"""Elements that a program takes at a time where it cannot keep them."""
WIDTH = 64
"""Channels that it takes at a time then, at most: whole cache lines."""
COLUMNS = 4096
"""Chunks times channels of a client: programs enough for a GPU, and few results to combine."""


def stacked_batch_norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
    relu: bool = False,
    residual: Tensor | None = None,
) -> Tensor:
    """Normalise in training mode: y = bn(x) + residual, followed by a ReLU if `relu`.

    Args:
        x: activations [S*B, C, H, W] or [S*B, C], float32 or bfloat16, channels last in memory;
            client s owns the rows from s*B to (s+1)*B.
        weight: [S, C], float32, as are the next three.
        bias: [S, C].
        running_mean: [S, C], updated in place.
        running_var: [S, C], updated in place, with the unbiased variance.
        momentum: share of the new statistics in the running ones.
        eps: added to the variance.
        relu: whether a ReLU follows.
        residual: what is added, of x's shape and dtype.

    Returns:
        y of x's shape and dtype, channels last in memory.
    """
    if residual is not None and (residual.shape, residual.dtype) != (x.shape, x.dtype):
        raise ValueError("the residual must be of the input's shape and dtype")
    if not all(each.is_contiguous() for each in (weight, bias, running_mean, running_var)):
        raise ValueError("weights and running statistics must be contiguous")
    y: Tensor = _StackedBatchNorm.apply(  # type: ignore[no-untyped-call]  # torch does not type it
        x, weight, bias, residual, running_mean, running_var, momentum, eps, relu
    )
    return y


class _Cut(NamedTuple):
    """How clients [M, C] are shared out: chunks of `height` rows, programs, tiles of a program."""

    m: int
    c: int
    height: int
    rows: int
    channels: int
    warps: int

    @property
    def chunks(self) -> int:
        return -(-self.m // self.height)

    def partial(self, like: Tensor) -> Tensor | None:
        """Allocate the chunks' results [S, chunks, 2, C]; return None if a tile has all rows."""
        if self.rows >= self.m:
            return None
        return like.new_empty(len(like), self.chunks, 2, self.c)

    def programs(self, clients: int) -> tuple[int, int, int]:
        return triton.cdiv(self.c, self.channels), self.chunks, clients

    @property
    def tile(self) -> dict[str, int]:
        return {"ROWS": self.rows, "BLOCK_C": self.channels, "num_warps": self.warps}

    @property
    def combined(self) -> dict[str, int]:
        """The tile where partial results are combined first."""
        return self.tile | {"CHUNKS": triton.next_power_of_2(self.chunks)}


@cache
def _cut(m: int, c: int) -> _Cut:
    if m < 2:
        raise ValueError("the variance of a single row is not defined")
    rows, channels = triton.next_power_of_2(m), min(16, triton.next_power_of_2(c))
    if rows * channels <= RESIDENT:
        return _Cut(m, c, m, rows, channels, warps=min(16, max(1, rows * channels // 512)))
    channels = min(WIDTH, triton.next_power_of_2(c))
    rows = TILE // channels
    height = rows * triton.cdiv(m, rows * max(1, min(64, COLUMNS // c)))
    return _Cut(m, c, height, rows, channels, warps=4)


def _rows(x: Tensor) -> Tensor:
    """Return [N, C, ...] as [N, ..., C], contiguous; copy only if channels are not last."""
    return x.movedim(1, -1).contiguous()


class _StackedBatchNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        residual: Tensor | None,
        running_mean: Tensor,
        running_var: Tensor,
        momentum: float,
        eps: float,
        relu: bool,
    ) -> Tensor:
        x = _rows(x)
        y = torch.empty_like(x)
        m, c = x.numel() // weight.numel(), weight.shape[1]
        cut = _cut(m, c)
        grid, partial = cut.programs(len(weight)), cut.partial(weight)
        means, rstds = torch.empty_like(running_mean), torch.empty_like(running_mean)
        if partial is not None:
            chunk_moments[grid](x, partial, m, c, cut.height, **cut.tile)
        normalise[grid](
            x, None if residual is None else _rows(residual), y, partial,
            weight, bias, running_mean, running_var, means, rstds,
            m, c, cut.height, momentum, eps,
            RELU=relu, **cut.combined,
        )  # fmt: skip
        ctx.relu, ctx.residual = relu, residual is not None
        ctx.save_for_backward(x, y if relu and ctx.residual else None, weight, bias, means, rstds)
        return y.movedim(-1, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, y, weight, bias, means, rstds = ctx.saved_tensors
        grad = _rows(grad)
        relu = ctx.relu
        masked = None if y is None else torch.empty_like(x)
        grad_residual = grad if masked is None else masked
        grad_x, grad_weight, grad_bias = map(torch.empty_like, (x, weight, bias))
        m, c = x.numel() // weight.numel(), weight.shape[1]
        cut = _cut(m, c)
        grid, partial = cut.programs(len(weight)), cut.partial(weight)
        if partial is not None:
            chunk_slopes[grid](
                grad, x, y, masked, partial, weight, bias, means, rstds,
                m, c, cut.height, RELU=relu, **cut.tile,
            )  # fmt: skip
            if masked is not None:
                grad, y, masked, relu = masked, None, None, False
        input_gradient[grid](
            grad, x, y, masked, grad_x, partial, weight, bias, means, rstds,
            grad_weight, grad_bias, m, c, cut.height,
            RELU=relu, **cut.combined,
        )  # fmt: skip
        to_residual = grad_residual.movedim(-1, 1) if ctx.residual else None
        return grad_x.movedim(-1, 1), grad_weight, grad_bias, to_residual, *(None,) * 5
