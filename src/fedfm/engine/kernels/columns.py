"""Columns of S clients' matrices [M, C]: their sums, and their products with numbers per client.

A program takes a chunk of a client's rows, and chunks are added up in order afterwards. How a
client is cut depends on M and C alone: a client's results do not depend on its company.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
# ruff: noqa: ANN001, ANN202 (Triton gives annotations in kernels a meaning of its own)

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

TILE = 4096
"""Elements that a program takes at a time."""
PROGRAMS = 64
"""Programs of a client, about."""


def sum_columns(x: Tensor, clients: int) -> Tensor:
    """Return the sums [S, C], float32, of the rows of x [S*M..., C], contiguous."""
    return _reduce(x, None, None, clients)[0]


def scale_columns(x: Tensor, scale: Tensor) -> Tensor:
    """Multiply each client's columns by its numbers.

    Args:
        x: [S, ..., C], contiguous.
        scale: [S, C].

    Returns:
        [S, ..., C] of the dtype to which torch promotes both.
    """
    y: Tensor = _Scaling.apply(x, scale)  # type: ignore[no-untyped-call]  # torch does not type it
    return y


class _Scaling(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor) -> Tensor:
        x, scale = x.contiguous(), scale.contiguous()
        ctx.save_for_backward(x, scale)
        y = torch.empty_like(x, dtype=torch.promote_types(x.dtype, scale.dtype))
        m, c, grid, tile = _share_out(x, len(scale))
        _scale[grid](x, scale, y, m, c, **tile)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, scale = ctx.saved_tensors
        sums, grad_x = _reduce(grad.contiguous(), x, scale, len(scale))
        assert grad_x is not None
        return grad_x, sums.to(scale.dtype)


def _reduce(
    grad: Tensor, x: Tensor | None, scale: Tensor | None, clients: int
) -> tuple[Tensor, Tensor | None]:
    """Return the sums [S, C] of grad * x, and grad * scale of x's dtype; x may be all ones."""
    m, c, grid, tile = _share_out(grad, clients)
    partial = grad.new_empty(clients, grid[1], c, dtype=torch.float32)
    scaled = None if x is None else torch.empty_like(x)
    _sum_chunks[grid](grad, x, scale, scaled, partial, m, c, **tile)
    return partial.sum(1), scaled


def _share_out(x: Tensor, clients: int) -> tuple[int, int, tuple[int, int, int], dict[str, int]]:
    """Return rows and columns of a client, the programs, and what they are compiled for."""
    c = x.shape[-1]
    m = x.numel() // (clients * c)
    blocks, chunks, tile = _cut(m, c)
    return m, c, (blocks, chunks, clients), tile


@cache
def _cut(m: int, c: int) -> tuple[int, int, dict[str, int]]:
    columns = min(128, triton.next_power_of_2(c))
    rows = min(TILE // columns, triton.next_power_of_2(m))
    blocks = triton.cdiv(c, columns)
    chunks = max(1, min(PROGRAMS // blocks, triton.cdiv(m, rows)))
    height = rows * triton.cdiv(m, rows * chunks)
    tile = {"height": height, "ROWS": rows, "BLOCK_C": columns}
    return blocks, triton.cdiv(m, height), tile


@triton.jit
def _tile(start, M, C, channel, ROWS: tl.constexpr):
    row = start + tl.arange(0, ROWS)
    return row[:, None] * C + channel[None, :], (row < M)[:, None] & (channel < C)[None, :]


@triton.jit(do_not_specialize=["M", "height"])
def _scale(
    x, scale, y, M, C, height, ROWS: tl.constexpr, BLOCK_C: tl.constexpr
):  # fmt: skip
    """Compute y = x * scale for a chunk of a client's rows."""
    client = tl.program_id(2).to(tl.int64)
    channel = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    factor = tl.load(scale + client * C + channel, mask=channel < C, other=0).to(tl.float32)
    x += client * M * C
    y += client * M * C
    for step in tl.range(0, height, ROWS, num_stages=3):
        at, valid = _tile(tl.program_id(1) * height + step, M, C, channel, ROWS)
        value = tl.load(x + at, mask=valid, other=0).to(tl.float32) * factor[None, :]
        tl.store(y + at, value.to(y.dtype.element_ty), mask=valid)


@triton.jit(do_not_specialize=["M", "height"])
def _sum_chunks(
    grad, x, scale, scaled, partial, M, C, height,
    ROWS: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Store a chunk's sums of grad * x, or of grad; store grad * scale if there is an x."""
    client = tl.program_id(2).to(tl.int64)
    channel = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside = channel < C
    grad += client * M * C
    if x is not None:
        factor = tl.load(scale + client * C + channel, mask=inside, other=0).to(tl.float32)
        x += client * M * C
        scaled += client * M * C
    sums = tl.zeros([ROWS, BLOCK_C], tl.float32)
    for step in tl.range(0, height, ROWS, num_stages=3):
        at, valid = _tile(tl.program_id(1) * height + step, M, C, channel, ROWS)
        slope = tl.load(grad + at, mask=valid, other=0).to(tl.float32)
        if x is None:
            sums += slope
        else:
            sums += slope * tl.load(x + at, mask=valid, other=0).to(tl.float32)
            value = slope * factor[None, :]
            tl.store(scaled + at, value.to(scaled.dtype.element_ty), mask=valid)
    to = partial + (client * tl.num_programs(1) + tl.program_id(1)) * C + channel
    tl.store(to, tl.sum(sums, 0), mask=inside)
