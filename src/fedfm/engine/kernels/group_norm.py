"""Group normalisation of S clients at once, each with its own weights.

Channels are last in memory, so a sample is a matrix [P, C] of P positions. A program keeps some
groups of a sample in registers where they fit, and passes over memory once. Gradients of weights
are summed per sample first, then over a client's samples: nothing is added atomically, and a
client's results do not depend on its company.
"""

from functools import cache
from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from fedfm.engine.kernels import _group_norm as device

RESIDENT = 16384
"""Elements that a program may keep in registers."""
TILE = 8192
"""Elements of a program, if its rows then have at least `NARROWEST` channels."""
NARROWEST = 16
"""Channels from which on a program reads memory without waste."""


def stacked_group_norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    groups: int,
    eps: float,
    activation: str | None = None,
    residual: Tensor | None = None,
) -> Tensor:
    """Normalise each sample's groups of channels: y = activation(gn(x) + residual).

    Args:
        x: activations [S*B, C, ...], float32 or bfloat16, channels last in memory; client s owns
            the rows from s*B to (s+1)*B.
        weight: [S, C], float32.
        bias: [S, C], float32.
        groups: groups of neighbouring channels, a divisor of C.
        eps: added to the variance.
        activation: "relu", "silu" or None.
        residual: what is added, of x's shape and dtype; not with "silu".

    Returns:
        y of x's shape and dtype, channels last in memory.
    """
    if residual is not None and (residual.shape, residual.dtype) != (x.shape, x.dtype):
        raise ValueError("the residual must be of the input's shape and dtype")
    if residual is not None and activation == "silu":
        raise ValueError("SiLU(norm + residual) has no kernel")
    y: Tensor = _StackedGroupNorm.apply(  # type: ignore[no-untyped-call]  # torch does not type it
        x, weight.contiguous(), bias.contiguous(), residual, groups, eps, activation
    )
    return y


@cache
def _cut(positions: int, channels: int, groups: int) -> tuple[int, dict[str, Any]]:
    """Return how many programs share a sample, and the tile of each."""
    size = channels // groups
    block, rows = triton.next_power_of_2(size), triton.next_power_of_2(positions)
    width = max(block, NARROWEST, TILE // rows)
    if rows * width > RESIDENT:
        width = max(block, 64)
    blocks = min(width // block, triton.next_power_of_2(groups))
    resident = rows * blocks * block <= RESIDENT
    rows = rows if resident else max(1, TILE // (blocks * block))
    tile = {"SIZE": size, "GROUPS": blocks, "BLOCK": block, "ROWS": rows, "RESIDENT": resident}
    warps = min(16, max(1, rows * blocks * block // 1024))
    return triton.cdiv(groups, blocks), tile | {"num_warps": warps}


def _rows(x: Tensor) -> Tensor:
    """Return [N, C, ...] as [N, ..., C], contiguous; copy only if channels are not last."""
    return x.movedim(1, -1).contiguous()


class _StackedGroupNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        residual: Tensor | None,
        groups: int,
        eps: float,
        activation: str | None,
    ) -> Tensor:
        x, samples, c = _rows(x), len(x), x.shape[1]
        y, positions = torch.empty_like(x), x.numel() // (samples * c)
        programs, tile = _cut(positions, c, groups)
        means, rstds = (weight.new_empty(samples, groups) for _ in range(2))
        device.normalise[samples, programs](
            x, None if residual is None else _rows(residual), y, weight, bias, means, rstds,
            samples // len(weight), positions, c, eps, ACTIVATION=activation, **tile,
        )  # fmt: skip
        ctx.activation, ctx.groups, ctx.residual = activation, groups, residual is not None
        mask = y if activation == "relu" and ctx.residual else None
        ctx.save_for_backward(x, mask, weight, bias, means, rstds)
        return y.movedim(-1, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, y, weight, bias, means, rstds = ctx.saved_tensors
        grad, samples, c = _rows(grad), len(x), x.shape[-1]
        masked = None if y is None else torch.empty_like(x)
        grad_x, positions = torch.empty_like(x), x.numel() // (samples * c)
        partial = weight.new_empty(2, samples, c)
        programs, tile = _cut(positions, c, ctx.groups)
        device.input_gradient[samples, programs](
            grad, x, y, masked, grad_x, partial, weight, bias, means, rstds,
            samples // len(weight), positions, c, ACTIVATION=ctx.activation, **tile,
        )  # fmt: skip
        grad_bias, grad_weight = partial.view(2, len(weight), -1, c).sum(2)
        grad_residual = grad if masked is None else masked
        to_residual = grad_residual.movedim(-1, 1) if ctx.residual else None
        return grad_x.movedim(-1, 1), grad_weight, grad_bias, to_residual, None, None, None
