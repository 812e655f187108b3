"""Max pooling with channels last, whose gradient is gathered rather than scattered.

Windows store the position of their maximum in one byte. Torch stores eight, and does not guarantee
a deterministic gradient.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
# ruff: noqa: ANN001, ANN202 (Triton gives annotations in kernels a meaning of its own)

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from fedfm.engine.stacking.pooling import LARGEST

TILE = 1024
"""Elements of a program: some pixels' channels."""


def max_pool2d(x: Tensor, kernel: int, stride: int, padding: int = 0) -> Tensor:
    """Return the maxima of square windows; the first of equals gets the gradient.

    Args:
        x: [N, C, H, W], channels last in memory.
        kernel: side of the windows, at most LARGEST.
        stride: from one window to the next.
        padding: rows and columns around the image that are never a maximum.

    Returns:
        [N, C, H', W'], channels last in memory.
    """
    if not 2 * padding <= kernel <= LARGEST:
        raise ValueError(f"kernels reach from twice the padding to {LARGEST}")
    y: Tensor = _MaxPool2d.apply(  # type: ignore[no-untyped-call]  # torch does not type it
        x, kernel, stride, padding
    )
    return y


def _share_out(x: Tensor) -> tuple[tuple[int, int], dict[str, int]]:
    """Return the programs that go over [N, H, W, C], and their tiles."""
    c = x.shape[-1]
    channels = min(64, triton.next_power_of_2(c))
    pixels = TILE // channels
    grid = (triton.cdiv(x.numel() // c, pixels), triton.cdiv(c, channels))
    return grid, {"PIXELS": pixels, "BLOCK_C": channels}


class _MaxPool2d(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: int, stride: int, padding: int) -> Tensor:
        x = x.movedim(1, -1).contiguous()
        n, h, w, c = x.shape
        out_h, out_w = ((side + 2 * padding - kernel) // stride + 1 for side in (h, w))
        y = x.new_empty(n, out_h, out_w, c)
        winner = torch.empty_like(y, dtype=torch.uint8)
        ctx.window = {"KERNEL": kernel, "STRIDE": stride, "PADDING": padding}
        grid, tile = _share_out(y)
        _pool[grid](x, y, winner, n, h, w, out_h, out_w, c, **ctx.window, **tile)
        ctx.save_for_backward(winner)
        ctx.shape = x.shape
        return y.movedim(-1, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (winner,) = ctx.saved_tensors
        grad = grad.movedim(1, -1).contiguous()
        grad_x = grad.new_empty(ctx.shape)
        (n, h, w, c), (_, out_h, out_w, _) = ctx.shape, grad.shape
        grid, tile = _share_out(grad_x)
        _gather[grid](grad, winner, grad_x, n, h, w, out_h, out_w, c, **ctx.window, **tile)
        return grad_x.movedim(-1, 1), None, None, None


@triton.jit
def _place(N, H, W, C, PIXELS: tl.constexpr, BLOCK_C: tl.constexpr):
    """Return this program's images, rows, columns [PIXELS, 1], channels, offsets, validity."""
    pixel = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)[:, None]
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)[None, :]
    line = pixel // W
    valid = (pixel < N * H * W) & (channel < C)
    return line // H, line % H, pixel % W, channel, pixel.to(tl.int64) * C + channel, valid


@triton.jit
def _pool(
    x, y, winner, N, H, W, OUT_H, OUT_W, C,
    KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr,
    PIXELS: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Store the maximum of every window and its place, counted in reading order."""
    image, out_row, out_column, channel, at, valid = _place(N, OUT_H, OUT_W, C, PIXELS, BLOCK_C)
    best = tl.full([PIXELS, BLOCK_C], float("-inf"), tl.float32)
    place = tl.zeros([PIXELS, BLOCK_C], tl.int32)
    for i in tl.static_range(KERNEL):
        for j in tl.static_range(KERNEL):
            row = out_row * STRIDE - PADDING + i
            column = out_column * STRIDE - PADDING + j
            inside = (row >= 0) & (row < H) & (column >= 0) & (column < W)
            source = ((image.to(tl.int64) * H + row) * W + column) * C + channel
            value = tl.load(x + source, mask=inside & valid, other=float("-inf")).to(tl.float32)
            better = (value > best) | (value != value)
            best = tl.where(better, value, best)
            place = tl.where(better, i * KERNEL + j, place)
    tl.store(y + at, best, mask=valid)
    tl.store(winner + at, place.to(tl.uint8), mask=valid)


@triton.jit
def _gather(
    grad, winner, grad_x, N, H, W, OUT_H, OUT_W, C,
    KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr,
    PIXELS: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Sum the gradients of the windows whose maximum an element is."""
    image, row, column, channel, at, valid = _place(N, H, W, C, PIXELS, BLOCK_C)
    total = tl.zeros([PIXELS, BLOCK_C], tl.float32)
    for above in tl.static_range((KERNEL + STRIDE - 1) // STRIDE):
        for left in tl.static_range((KERNEL + STRIDE - 1) // STRIDE):
            out_row = (row + PADDING) // STRIDE - above
            out_column = (column + PADDING) // STRIDE - left
            i = row + PADDING - out_row * STRIDE
            j = column + PADDING - out_column * STRIDE
            inside = (i < KERNEL) & (out_row >= 0) & (out_row < OUT_H)
            inside &= (j < KERNEL) & (out_column >= 0) & (out_column < OUT_W)
            source = ((image.to(tl.int64) * OUT_H + out_row) * OUT_W + out_column) * C + channel
            slope = tl.load(grad + source, mask=inside & valid, other=0).to(tl.float32)
            won = tl.load(winner + source, mask=inside & valid, other=0).to(tl.int32)
            total += tl.where(won == i * KERNEL + j, slope, 0)
    tl.store(grad_x + at, total, mask=valid)
