"""Layer normalisation of S clients at once, each with its own weights.

A client is a matrix [R, F] of R rows. A program takes a chunk of a client's rows, some whole rows
at a time, so memory is passed over once. The gradients of the weights are sums over rows: every
program stores those of its chunk, and these are added in one order. How a client is cut depends on
R and F, never on S, and nothing is added atomically.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
# ruff: noqa: ANN001, ANN202 (Triton gives annotations in kernels a meaning of its own)

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from fedfm.engine.stacking.tokens import WIDEST

TILE = 2048
"""Elements that a program takes at a time, if a row does not have more."""
CHUNK = 32
"""Rows of a program, if a tile does not have more."""


def stacked_layer_norm(
    x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, dtype: torch.dtype
) -> Tensor:
    """Return (x - mean) / sqrt(variance + eps) * weight + bias, with statistics in float32.

    Args:
        x: rows [S, R, F] with F up to `WIDEST`, float32 or bfloat16.
        weight: [S, F].
        bias: [S, F], or None.
        eps: added to the variance.
        dtype: of the result.

    Returns:
        [S, R, F].
    """
    if x.shape[-1] > WIDEST:
        raise ValueError(f"rows have at most {WIDEST} features")
    y: Tensor = _StackedLayerNorm.apply(  # type: ignore[no-untyped-call]  # torch does not type it
        x, weight, bias, eps, dtype
    )
    return y


def _share_out(x: Tensor) -> tuple[int, tuple[int, int], dict[str, int]]:
    """Return the rows of a program, the programs, and their tiles."""
    clients, rows, width = x.shape
    across = triton.next_power_of_2(width)
    at_once = max(1, TILE // across)
    chunk = max(CHUNK, at_once)
    tile = {"ROWS": at_once, "BLOCK": across, "num_warps": 4 if across <= TILE else 8}
    return chunk, (triton.cdiv(rows, chunk), clients), tile


class _StackedLayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, dtype: torch.dtype
    ) -> Tensor:
        x, weight = x.contiguous(), weight.contiguous()
        y = torch.empty_like(x, dtype=dtype)
        means, rstds = x.new_empty(2, *x.shape[:2], dtype=torch.float32)
        chunk, grid, tile = _share_out(x)
        shift = None if bias is None else bias.contiguous()
        _normalise_rows[grid](x, weight, shift, y, means, rstds, *x.shape[1:], chunk, eps, **tile)
        ctx.save_for_backward(x, weight, means, rstds)
        ctx.bias_dtype = None if bias is None else bias.dtype
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, means, rstds = ctx.saved_tensors
        grad_x = torch.empty_like(x)
        chunk, grid, tile = _share_out(x)
        partial = means.new_empty(2, len(x), grid[0], x.shape[-1])
        _row_slopes[grid](
            grad.contiguous(), x, weight, means, rstds, grad_x, *partial,
            *x.shape[1:], chunk, **tile,
        )  # fmt: skip
        grad_weight, grad_bias = partial.sum(2)
        to_bias = None if ctx.bias_dtype is None else grad_bias.to(ctx.bias_dtype)
        return grad_x, grad_weight.to(weight.dtype), to_bias, None, None


@triton.jit
def _tile(client, start, last, R, F, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Return the places of rows among all rows [ROWS], of their elements, and what is valid."""
    row = start + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    valid = (row < last)[:, None] & (column < F)[None, :]
    place = client * R + row
    return place, row < last, place[:, None] * F + column[None, :], valid


@triton.jit
def _normalise_rows(
    x, weight, bias, y, means, rstds, R, F, chunk, eps, ROWS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Normalise a chunk of a client's rows; store their means and reciprocal deviations."""
    client = tl.program_id(1).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < F
    scale = tl.load(weight + client * F + column, mask=inside, other=0).to(tl.float32)
    first = tl.program_id(0) * chunk
    last = tl.minimum(first + chunk, R)
    for start in range(first, last, ROWS):
        place, exists, at, valid = _tile(client, start, last, R, F, ROWS, BLOCK)
        tile = tl.load(x + at, mask=valid, other=0).to(tl.float32)
        mean = tl.sum(tile, 1) / F
        centred = tl.where(valid, tile - mean[:, None], 0)
        rstd = 1 / tl.sqrt(tl.sum(centred * centred, 1) / F + eps)
        out = centred * rstd[:, None] * scale[None, :]
        if bias is not None:
            shift = tl.load(bias + client * F + column, mask=inside, other=0).to(tl.float32)
            out += shift[None, :]
        tl.store(y + at, out, mask=valid)
        tl.store(means + place, mean, mask=exists)
        tl.store(rstds + place, rstd, mask=exists)


@triton.jit
def _row_slopes(
    grad, x, weight, means, rstds, grad_x, weight_sums, bias_sums, R, F, chunk,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute the input's gradient for a chunk, and its share in those of weight and bias."""
    client = tl.program_id(1).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < F
    scale = tl.load(weight + client * F + column, mask=inside, other=0).to(tl.float32)
    to_weight = tl.zeros([ROWS, BLOCK], tl.float32)
    to_bias = tl.zeros([ROWS, BLOCK], tl.float32)
    first = tl.program_id(0) * chunk
    last = tl.minimum(first + chunk, R)
    for start in range(first, last, ROWS):
        place, exists, at, valid = _tile(client, start, last, R, F, ROWS, BLOCK)
        slope = tl.load(grad + at, mask=valid, other=0).to(tl.float32)
        mean = tl.load(means + place, mask=exists, other=0)
        rstd = tl.load(rstds + place, mask=exists, other=0)
        tile = tl.load(x + at, mask=valid, other=0).to(tl.float32)
        x_hat = tl.where(valid, (tile - mean[:, None]) * rstd[:, None], 0)
        to_weight += slope * x_hat
        to_bias += slope
        slope *= scale[None, :]
        plain = tl.sum(slope, 1) / F
        along = tl.sum(slope * x_hat, 1) / F
        slope = (slope - plain[:, None] - x_hat * along[:, None]) * rstd[:, None]
        tl.store(grad_x + at, slope, mask=valid)
    to = (client * tl.num_programs(0) + tl.program_id(0)) * F + column
    tl.store(weight_sums + to, tl.sum(to_weight, 0), mask=inside)
    tl.store(bias_sums + to, tl.sum(to_bias, 0), mask=inside)
