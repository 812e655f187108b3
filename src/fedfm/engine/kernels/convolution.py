"""Convolution of S clients at once, each with filters of its own.

Channels are last in memory, so every pass is a matrix product one operand of which is gathered from
the activations on the way: nothing is unfolded. How a client is cut into tiles depends on its own
sizes, never on S, and nothing is added atomically: a client's results do not depend on its company.
Filters of one tap in half precision are plain matrix products, which cuBLAS computes faster; the
tiles it chooses may depend on S.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from fedfm.engine.kernels import _convolution as device
from fedfm.engine.kernels.columns import sum_columns

Pair = tuple[int, int]
CLIENTS = 10
"""Clients that tiles are chosen for; any other number gets the same tiles."""
BUSY = 132
"""Programs that a GPU runs at a time, at least."""
PLENTY = 4 * BUSY
"""Programs from which on larger tiles pay: each of them moves less memory per product."""
SHAPES = ((128, 128), (128, 64), (64, 128), (64, 64), (64, 32), (32, 32))
"""Rows and columns of a tile, by preference."""
STEPS = 16
"""Steps of a sum that its programs should have at least, where several share it."""
SPLITS = 32
"""Programs that share a sum, at most."""


def stacked_conv2d(
    x: Tensor,
    weight: Tensor,
    stride: Pair,
    padding: Pair,
    bias: Tensor | None = None,
) -> Tensor:
    """Convolve every client's images with that client's filters.

    Other memory layouts than those below are right, too, at the price of a copy, and so is a number
    of channels that four does not divide.

    Args:
        x: activations [S*B, I, H, W], float32 or bfloat16, channels last in memory; client s owns
            the rows from s*B to (s+1)*B.
        weight: filters [S, O, I, kh, kw] of x's dtype, in memory [S, O, kh, kw, I]; the gradient
            has that layout, too.
        stride: step between outputs, down and across.
        padding: zeros around the input, above and below, left and right.
        bias: [S, O], float32 or of x's dtype; None if there is none.

    Returns:
        [S*B, O, H', W'] of x's dtype, channels last in memory.
    """
    return branch_conv2d(x, weight, stride, padding, bias)[0]


def branch_conv2d(
    x: Tensor, weight: Tensor, stride: Pair, padding: Pair, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Convolve as `stacked_conv2d`; also return x for another branch of the network.

    The gradients of both branches are then added where that of the convolution is computed.
    """
    if weight.shape[3:] == stride == (1, 1) and padding == (0, 0) and x.shape[2:] != (1, 1):
        return _by_pixel(x, weight, bias)
    layer = ConvolutionShape.of(x, weight, stride, padding)
    pixels = x.permute(0, 2, 3, 1).contiguous()
    filters = weight.permute(0, 1, 3, 4, 2).contiguous()
    y, same = _Convolution.apply(  # type: ignore[no-untyped-call]  # torch does not type it
        pixels, filters, bias, layer
    )
    return y.permute(0, 3, 1, 2), same.permute(0, 3, 1, 2)


def _by_pixel(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Convolve by filters of one tap, with every pixel as an image: tiles are then whole in memory.

    Otherwise the rows of a tile are those of one pixel of many images, far from each other.
    """
    pixels = x.permute(0, 2, 3, 1)
    results = branch_conv2d(pixels.reshape(-1, len(x[0]), 1, 1), weight, (1, 1), (0, 0), bias)
    y, same = (each.view(*pixels.shape[:3], -1).permute(0, 3, 1, 2) for each in results)
    return y, same


@dataclass(frozen=True)
class ConvolutionShape:
    """What a kernel is compiled for: x [B, H, W, IN], y [B, P, Q, OUT], filters of KH by KW.

    IN is a multiple of four, with zeros for missing channels: pixels can then be copied to shared
    memory in the background, which takes four bytes at least, and with few instructions.
    """

    H: int
    W: int
    IN: int
    P: int
    Q: int
    OUT: int
    KH: int
    KW: int
    STRIDE_H: int
    STRIDE_W: int
    PAD_H: int
    PAD_W: int

    @classmethod
    def of(
        cls, x: Tensor, weight: Tensor, stride: tuple[int, int], padding: tuple[int, int]
    ) -> "ConvolutionShape":
        """Return the layer that applies `weight` [S, O, I, kh, kw] to `x` [S*B, I, H, W]."""
        rows, channels, height, width = x.shape
        clients, outputs, inputs, kh, kw = weight.shape
        if inputs != channels or rows % clients or x.dtype != weight.dtype:
            raise ValueError(
                f"filters {tuple(weight.shape)} of {weight.dtype} do not fit"
                f" activations {tuple(x.shape)} of {x.dtype}"
            )
        p = (height + 2 * padding[0] - kh) // stride[0] + 1
        q = (width + 2 * padding[1] - kw) // stride[1] + 1
        if p < 1 or q < 1:
            raise ValueError(f"filters of {kh}x{kw} exceed padded maps of {height}x{width}")
        inputs += -inputs % 4
        if rows // clients * max(height * width * inputs, p * q * outputs) >= 2**31:
            raise torch.OutOfMemoryError("a client's activations have 2**31 elements or more")
        return cls(height, width, inputs, p, q, outputs, kh, kw, *stride, *padding)

    def is_product(self, dtype: torch.dtype) -> bool:
        """Return whether each pixel is an image that a filter of one tap meets, in bf16 or fp16."""
        one_tap = self.H == self.W == self.P == self.Q == self.KH == self.KW == 1
        return one_tap and self.PAD_H == self.PAD_W == 0 and dtype.itemsize == 2


@dataclass(frozen=True)
class Tiles:
    """What a program computes: [rows, columns] of a result, summed `depth` terms at a time."""

    rows: int
    columns: int
    depth: int
    splits: int = 1
    """Programs that share a sum; another kernel adds up their parts."""
    warps: int = 4
    stages: int = 4


def tiles(
    rows: int, columns: int, depth: int, splits: int = 1, limit: tuple[int, int] = (128, 128)
) -> Tiles:
    """Return the largest tiles up to `limit` that cut [rows, columns] into enough programs.

    At most `splits` programs share a sum, and no more than it takes to have plenty of them.
    """
    for shape in SHAPES:
        height = min(shape[0], limit[0], _fitting(rows))
        width = min(shape[1], limit[1], _fitting(columns))
        programs = CLIENTS * triton.cdiv(rows, height) * triton.cdiv(columns, width)
        shared = min(splits, triton.cdiv(PLENTY, programs))
        large = height * width > 64 * 64
        if programs * shared >= (PLENTY if large else BUSY):
            break
    huge = height * width > 128 * 64
    return Tiles(height, width, depth, shared, warps=8 if huge else 4, stages=3 if large else 4)


def gather_tiles(rows: int, columns: int, channels: int, taps: int, dtype: torch.dtype) -> Tiles:
    """Return the tiles of the forward pass and of the input's gradient."""
    deepest, limit = _limits(dtype)
    depth = min(channels & -channels, deepest)
    if depth < 16:
        depth = min(32, deepest, _fitting(taps * channels))
    return tiles(rows, columns, depth, limit=limit)


def weight_tiles(layer: ConvolutionShape, batch: int, dtype: torch.dtype) -> Tiles:
    """Return the tiles of the weights' gradient [OUT, KH * KW * IN], summed over positions."""
    deepest, limit = _limits(dtype)
    depth = min(deepest, _fitting(batch))
    steps = layer.P * layer.Q * triton.cdiv(batch, depth)
    splits = min(max(1, steps // STEPS), SPLITS)
    return tiles(layer.OUT, layer.KH * layer.KW * layer.IN, depth, splits, limit)


def forward(
    x: Tensor,
    weight: Tensor,
    layer: ConvolutionShape,
    cut: Tiles | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """Convolve x [S*B, H, W, IN] by weight [S, OUT, KH, KW, IN] to [S*B, P, Q, OUT]."""
    clients, batch = len(weight), len(x) // len(weight)
    if bias is None and cut is None and layer.is_product(x.dtype):
        return torch.bmm(_rows(x, clients), _rows(weight, clients).mT).view(len(x), 1, 1, -1)
    rows, taps = batch * layer.P * layer.Q, layer.KH * layer.KW
    cut = cut or gather_tiles(rows, layer.OUT, layer.IN, taps, x.dtype)
    y = x.new_empty(len(x), layer.P, layer.Q, layer.OUT)
    grid = (triton.cdiv(rows, cut.rows), triton.cdiv(layer.OUT, cut.columns), clients)
    device.forward[grid](x, weight, bias, y, batch, **_constants(layer, cut))
    return y


def input_gradient(
    dy: Tensor,
    weight: Tensor,
    layer: ConvolutionShape,
    added: Tensor | None = None,
    cut: Tiles | None = None,
) -> Tensor:
    """Return the gradient [S*B, H, W, IN] of x from that of y, [S*B, P, Q, OUT], plus `added`."""
    clients, batch = len(weight), len(dy) // len(weight)
    if added is None and cut is None and layer.is_product(dy.dtype):
        return torch.bmm(_rows(dy, clients), _rows(weight, clients)).view(len(dy), 1, 1, -1)
    residues = layer.STRIDE_H * layer.STRIDE_W
    rows = batch * triton.cdiv(layer.H, layer.STRIDE_H) * triton.cdiv(layer.W, layer.STRIDE_W)
    taps = layer.KH * layer.KW
    cut = cut or gather_tiles(rows * residues, layer.IN, layer.OUT, taps, dy.dtype)
    dx = dy.new_empty(len(dy), layer.H, layer.W, layer.IN)
    grid = (triton.cdiv(rows, cut.rows) * residues, triton.cdiv(layer.IN, cut.columns), clients)
    device.input_gradient[grid](dy, weight, added, dx, batch, **_constants(layer, cut))
    return dx


def weight_gradient(
    x: Tensor, dy: Tensor, clients: int, layer: ConvolutionShape, cut: Tiles | None = None
) -> Tensor:
    """Return the gradient [S, OUT, KH, KW, IN] of the filters from x and the gradient of y."""
    batch = len(x) // clients
    shape = (clients, layer.OUT, layer.KH, layer.KW, layer.IN)
    if cut is None and layer.is_product(x.dtype):
        return torch.bmm(_rows(dy, clients).mT, _rows(x, clients)).view(shape)
    cut = cut or weight_tiles(layer, batch, x.dtype)
    dw = x.new_empty(shape)
    parts = dw if cut.splits == 1 else x.new_empty((cut.splits, *shape), dtype=torch.float32)
    across = triton.cdiv(layer.KH * layer.KW * layer.IN, cut.columns)
    grid = (triton.cdiv(layer.OUT, cut.rows) * across, cut.splits, clients)
    device.weight_gradient[grid](x, dy, parts, batch, clients, **_constants(layer, cut))
    if parts is not dw:
        blocks = (triton.cdiv(dw.numel(), 512),)
        device.sum_parts[blocks](parts, dw, dw.numel(), cut.splits, BLOCK=512, PARTS=8)
    return dw


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, layer: ConvolutionShape
    ) -> tuple[Tensor, Tensor]:
        ctx.layer, ctx.channels, same = layer, x.shape[-1], x
        ctx.bias = None if bias is None else bias.dtype
        ctx.set_materialize_grads(False)
        if ctx.channels != layer.IN:
            x, weight = (F.pad(each, (0, layer.IN - ctx.channels)) for each in (x, weight))
        ctx.save_for_backward(x, weight)
        y = forward(x, weight, layer, bias=None if bias is None else bias.contiguous())
        return y, same

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor | None, added: Tensor | None) -> tuple[Tensor | None, ...]:
        if dy is None:
            return added, None, None, None
        x, weight = ctx.saved_tensors
        dy, dx, dw, db = dy.contiguous(), None, None, None
        if ctx.needs_input_grad[0]:
            dx = _input_gradient(dy, weight, ctx.layer, ctx.channels, added)
        if ctx.needs_input_grad[1]:
            dw = weight_gradient(x, dy, len(weight), ctx.layer)[..., : ctx.channels].contiguous()
        if ctx.needs_input_grad[2]:
            db = sum_columns(dy, len(weight)).to(ctx.bias)
        return dx, dw, db, None


def _input_gradient(
    dy: Tensor, weight: Tensor, layer: ConvolutionShape, channels: int, added: Tensor | None
) -> Tensor:
    """Return the gradient of an input of so many channels, plus that of its other branch."""
    if channels == layer.IN:
        return input_gradient(dy, weight, layer, None if added is None else added.contiguous())
    dx = input_gradient(dy, weight, layer)[..., :channels].contiguous()
    return dx if added is None else dx + added


def _rows(x: Tensor, clients: int) -> Tensor:
    """View what has S clients and C channels last as [S, N, C]."""
    return x.view(clients, -1, x.shape[-1])


def _constants(layer: ConvolutionShape, cut: Tiles) -> dict[str, Any]:
    """Return what the kernels are compiled for."""
    exact = not torch.backends.cuda.matmul.allow_tf32
    return {
        **vars(layer),
        "BLOCK_M": cut.rows,
        "BLOCK_N": cut.columns,
        "BLOCK_K": cut.depth,
        "PRECISION": "ieee" if exact else "tf32",
        "num_warps": cut.warps,
        "num_stages": cut.stages,
    }


def _fitting(size: int) -> int:
    """Return the least power of two that holds `size` and that a matrix product may have."""
    return max(16, 1 << (size - 1).bit_length())


def _limits(dtype: torch.dtype) -> tuple[int, tuple[int, int]]:
    """Return the largest depth and tile: float32 products keep their operands in registers."""
    return (64, (128, 128)) if dtype.itemsize == 2 else (16, (64, 64))
