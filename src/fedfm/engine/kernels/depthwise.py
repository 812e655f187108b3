"""Depthwise convolution of S clients at once, each with one filter of its own per channel.

Channels are last in memory. Every pass is a sum over the taps of the filter, computed in registers:
there is no matrix product in it. Nothing is added atomically, and how a client is cut depends on
its own sizes alone: a client's results do not depend on its company.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from fedfm.engine.kernels import _depthwise as device
from fedfm.engine.kernels.columns import sum_columns

TILE = 2048
"""Elements of a result that a program computes."""
TERMS = 4096
"""Elements that a program reads at a time for the gradient of the filters."""
PROGRAMS = 128
"""Programs of a client that share the gradient of the filters, about."""


@dataclass(frozen=True)
class DepthwiseShape:
    """What a kernel is compiled for: x [B, H, W, C], y [B, P, Q, C], filters of KH by KW."""

    H: int
    W: int
    C: int
    P: int
    Q: int
    KH: int
    KW: int
    STRIDE_H: int
    STRIDE_W: int
    PAD_H: int
    PAD_W: int
    STEP_H: int
    STEP_W: int


def stacked_depthwise(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
) -> Tensor:
    """Convolve every channel of every client's images with its own filter.

    Args:
        x: activations [S*B, C, H, W], channels last in memory; client s owns the rows from s*B to
            (s+1)*B. They are rounded to the filters' dtype.
        weight: filters [S, C, 1, kh, kw], float32 or bfloat16.
        bias: [S, C], or None.
        stride: step between outputs, down and across.
        padding: zeros around the input, above and below, left and right.
        dilation: step between taps, down and across.

    Returns:
        [S*B, C, H', W'] of the filters' dtype, channels last in memory.
    """
    channels, height, width = x.shape[1:]
    kh, kw = weight.shape[-2:]
    p, q = (
        (side + 2 * pad - step * (taps - 1) - 1) // down + 1
        for side, pad, step, taps, down in zip(
            (height, width), padding, dilation, (kh, kw), stride, strict=True
        )
    )
    if p < 1 or q < 1:
        raise ValueError(f"filters of {kh}x{kw} exceed padded maps of {height}x{width}")
    if len(x) // len(weight) * channels * max(height * width, p * q) >= 2**31:
        raise torch.OutOfMemoryError("a client's activations have 2**31 elements or more")
    layer = DepthwiseShape(height, width, channels, p, q, kh, kw, *stride, *padding, *dilation)
    pixels = x.permute(0, 2, 3, 1).contiguous()
    y: Tensor = _Depthwise.apply(  # type: ignore[no-untyped-call]  # torch does not type it
        pixels, weight.flatten(2), bias, layer
    )
    return y.permute(0, 3, 1, 2)


class _Depthwise(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, layer: DepthwiseShape
    ) -> Tensor:
        ctx.layer, ctx.biased = layer, bias is not None
        weight = weight.mT.contiguous()
        ctx.save_for_backward(x, weight)
        y = weight.new_empty(len(x), layer.P, layer.Q, layer.C)
        grid, tile = _share_out(y, len(weight))
        batch = len(x) // len(weight)
        bias = None if bias is None else bias.contiguous()
        device.forward[grid](x, weight, bias, y, batch, **vars(layer), **tile)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        layer, dy, dx = ctx.layer, dy.contiguous(), None
        if ctx.needs_input_grad[0]:
            dx = torch.empty_like(x)
            grid, tile = _share_out(dx, len(weight))
            batch = len(x) // len(weight)
            device.input_gradient[grid](dy, weight, dx, batch, **vars(layer), **tile)
        dw = weight_gradient(x, dy, weight, layer) if ctx.needs_input_grad[1] else None
        return dx, dw, sum_columns(dy, len(weight)) if ctx.biased else None, None


def weight_gradient(x: Tensor, dy: Tensor, weight: Tensor, layer: DepthwiseShape) -> Tensor:
    """Return the gradient [S, C, taps] of the filters [S, taps, C], of their dtype."""
    clients, taps, c = weight.shape
    columns = min(64, triton.next_power_of_2(c))
    rows, blocks = TERMS // columns, triton.cdiv(c, columns)
    m = len(x) // clients * layer.P * layer.Q
    chunks = max(1, min(PROGRAMS // blocks, triton.cdiv(m, rows)))
    height = rows * triton.cdiv(m, rows * chunks)
    chunks = triton.cdiv(m, height)
    partial = x.new_empty(clients, chunks, taps, c, dtype=torch.float32)
    device.weight_gradient[blocks, chunks, clients](
        x, dy, weight, partial, m, height, **vars(layer), ROWS=rows, BLOCK_C=columns
    )
    return partial.sum(1).mT.contiguous().to(weight.dtype)


def _share_out(result: Tensor, clients: int) -> tuple[tuple[int, int, int], dict[str, int]]:
    """Return the programs that compute a result [S*B, H, W, C], and their tiles."""
    c = result.shape[-1]
    columns = min(64, triton.next_power_of_2(c))
    pixels = TILE // columns
    grid = (triton.cdiv(result.numel() // (clients * c), pixels), triton.cdiv(c, columns), clients)
    return grid, {"PIXELS": pixels, "BLOCK_C": columns}
