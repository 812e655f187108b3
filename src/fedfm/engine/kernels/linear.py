"""Linear layers of S clients at once: batched products of cuBLAS, and what belongs around them.

Torch's batched product with a bias first copies the bias to every row, element by element, and its
gradient leaves the weights' gradient transposed and the bias's to a slow reduction. Here the rows
are filled in one pass, the gradient of the weights is computed in their own layout and precision,
and that of the bias is added up in float32, by chunks of rows. A client's chunks depend on its own
sizes only, and nothing is added atomically.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
# ruff: noqa: ANN001, ANN202 (Triton gives annotations in kernels a meaning of its own)

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

COLUMNS, ROWS = 64, 64
"""The tile of a program."""
CHUNK = 256
"""Rows of a program."""


def stacked_linear(x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Return x weight^T + bias for every client, computed in a low precision.

    Args:
        x: rows [S, R, I].
        weight: [S, O, I].
        bias: [S, O], or None.
        dtype: of both factors in the product, and of the result. Gradients have the dtype of what
            they belong to: they are sums in float32, rounded once.

    Returns:
        [S, R, O].
    """
    y: Tensor = _StackedLinear.apply(  # type: ignore[no-untyped-call]  # torch does not type it
        x, weight, bias, dtype
    )
    return y


class _StackedLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype
    ) -> Tensor:
        ctx.dtypes = x.dtype, weight.dtype, bias if bias is None else bias.dtype
        x, weight = x.to(dtype), weight.to(dtype)
        ctx.save_for_backward(x, weight)
        if bias is None:
            return torch.bmm(x, weight.mT)
        return fill_rows(bias, x.shape[1], dtype).baddbmm_(x, weight.mT)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        x_dtype, weight_dtype, bias_dtype = ctx.dtypes
        needs_x, needs_weight, needs_bias, _ = ctx.needs_input_grad
        return (
            _multiply(grad, weight, x_dtype) if needs_x else None,
            _multiply(grad.mT, x, weight_dtype) if needs_weight else None,
            sum_rows(grad).to(bias_dtype) if needs_bias else None,
            None,
        )


def _multiply(one: Tensor, other: Tensor, dtype: torch.dtype) -> Tensor:
    """Return products [S, ...] of a dtype that may be wider than that of the factors."""
    if one.is_cuda and one.dtype != dtype == torch.float32:
        return torch.bmm(one, other, out_dtype=dtype)
    return torch.bmm(one, other).to(dtype)


def fill_rows(row: Tensor, rows: int, dtype: torch.dtype) -> Tensor:
    """Return every client's row [S, C] so many times: [S, R, C]."""
    row = row.contiguous()
    filled = row.new_empty(len(row), rows, row.shape[1], dtype=dtype)
    _fill[_programs(filled)](row, filled, *filled.shape[1:], CHUNK, ROWS, COLUMNS)
    return filled


def sum_rows(x: Tensor) -> Tensor:
    """Return the sum of every client's rows [S, R, C] in float32: [S, C]."""
    x = x.contiguous()
    programs = _programs(x)
    partial = x.new_empty(len(x), programs[1], x.shape[-1], dtype=torch.float32)
    _sum_chunk[programs](x, partial, *x.shape[1:], CHUNK, ROWS, COLUMNS)
    return partial.sum(1) if programs[1] > 1 else partial[:, 0]


def _programs(x: Tensor) -> tuple[int, int, int]:
    """Return the programs that go over [S, R, C]: blocks of columns, chunks of rows, clients."""
    clients, rows, columns = x.shape
    return triton.cdiv(columns, COLUMNS), triton.cdiv(rows, CHUNK), clients


@triton.jit
def _fill(row, filled, R, C, chunk, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Store a row's columns in a chunk of rows."""
    client = tl.program_id(2).to(tl.int64)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < C
    value = tl.load(row + client * C + column, mask=inside, other=0)
    values = tl.broadcast_to(value[None, :], [ROWS, COLUMNS]).to(filled.dtype.element_ty)
    first = tl.program_id(1) * chunk
    last = tl.minimum(first + chunk, R)
    for start in range(first, last, ROWS):
        index = start + tl.arange(0, ROWS)
        at = (client * R + index)[:, None] * C + column[None, :]
        tl.store(filled + at, values, mask=(index < last)[:, None] & inside[None, :])


@triton.jit
def _sum_chunk(x, partial, R, C, chunk, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Store the sum of a chunk of rows."""
    client = tl.program_id(2).to(tl.int64)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < C
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    first = tl.program_id(1) * chunk
    last = tl.minimum(first + chunk, R)
    for start in range(first, last, ROWS):
        index = start + tl.arange(0, ROWS)
        at = (client * R + index)[:, None] * C + column[None, :]
        valid = (index < last)[:, None] & inside[None, :]
        total += tl.load(x + at, mask=valid, other=0).to(tl.float32)
    to = partial + (client * tl.num_programs(1) + tl.program_id(1)) * C + column
    tl.store(to, tl.sum(total, 0), mask=inside)
