"""Convolutions of stacked networks."""

import math
from functools import lru_cache
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from fedfm.engine.stacking.product import multiply_rows
from fedfm.engine.stacking.rows import affine, by_client, lower_precision, to_lower_precision
from fedfm.models.standardised import standardise

PATCHES = {"cpu": 200_000, "cuda": 4_000_000}
"""With more numbers in a client's patches, fp32 convolutions run client by client."""
Pair = tuple[int, int]


class StackedConv2d(nn.Conv2d):
    """weight [S, O, I/g, h, w], bias [S, O]; [S*B, I, H, W] -> [S*B, O, H', W']."""

    def forward(self, input: Tensor) -> Tensor:
        """Convolve by the fastest implementation."""
        depthwise = self.groups == self.in_channels == self.out_channels
        if input.is_cuda and depthwise and self.weight.dtype != torch.float64:
            return self._depthwise(input)
        x, weight = to_lower_precision(input, self.filters())
        by_product = self._by_product(x) and (x.is_cuda or self.groups == 1)
        return self._product(x, weight) if by_product else self._one_by_one(x, weight)

    def filters(self) -> Tensor:
        """Return what samples are convolved with, [S, O, I/g, h, w]."""
        return self.weight

    def branch(self, input: Tensor) -> tuple[Tensor, Tensor]:
        """Return the convolution and the input, whose gradients a GPU then adds in one pass."""
        x, weight = to_lower_precision(input, self.filters())
        if not (input.is_cuda and x is input and self.groups == 1 and self._by_product(x)):
            return self(input), input
        from fedfm.engine.kernels.convolution import branch_conv2d

        return branch_conv2d(x, weight, *self._geometry, self.bias)

    def _by_product(self, x: Tensor) -> bool:
        patches = x.numel() * math.prod(self.kernel_size) // len(self.weight)
        small = x.dtype == torch.bfloat16 or patches <= PATCHES[x.device.type]
        return small and self.dilation == (1, 1)

    def _product(self, x: Tensor, weight: Tensor) -> Tensor:
        if not x.is_cuda:
            return _conv_by_patches(x, weight, self.bias, *self._geometry)
        from fedfm.engine.kernels.convolution import stacked_conv2d

        if self.groups == 1:
            return stacked_conv2d(x, weight, *self._geometry, self.bias)
        by_group = stacked_conv2d(*split_groups(x, weight, self.groups), *self._geometry)
        return affine(join_groups(by_group, len(weight), self.groups), None, self.bias, 1)

    def _depthwise(self, x: Tensor) -> Tensor:
        from fedfm.engine.kernels.depthwise import stacked_depthwise

        weight = self.filters().to(lower_precision(x, self.weight))
        return stacked_depthwise(x, weight, self.bias, *self._geometry, cast(Pair, self.dilation))

    @property
    def _geometry(self) -> tuple[Pair, Pair]:
        """Stride and padding; `stack_module` refuses padding given by name."""
        return cast(tuple[Pair, Pair], (self.stride, self.padding))

    def _one_by_one(self, x: Tensor, weight: Tensor) -> Tensor:
        bias = [None] * len(weight) if self.bias is None else self.bias.to(x.dtype)
        clients = zip(by_client(x, len(weight)), weight, bias, strict=True)
        settings = *self._geometry, self.dilation, self.groups
        return torch.cat([F.conv2d(own_x, w, b, *settings) for own_x, w, b in clients])


class StackedStandardisedConv2d(StackedConv2d):
    """The same with standardised filters."""

    rho: float

    def filters(self) -> Tensor:
        """Return the weights with mean 0 and deviation rho over each filter."""
        return standardise(self.weight, self.rho).to(self.weight.dtype)


def split_groups(x: Tensor, weight: Tensor, groups: int) -> tuple[Tensor, Tensor]:
    """Make each group of channels of x [S*B, I, H, W] and weight [S, O, I/g, h, w] a client."""
    rows = torch.unflatten(by_client(x, len(weight)), 2, (groups, -1)).transpose(1, 2)
    return rows.flatten(0, 2), torch.unflatten(weight, 1, (groups, -1)).flatten(0, 1)


def join_groups(y: Tensor, clients: int, groups: int) -> Tensor:
    """Return [S*g*B, O/g, H, W] as [S*B, O, H, W]."""
    rows = torch.unflatten(y, 0, (clients, groups, -1)).transpose(1, 2)
    return rows.flatten(2, 3).flatten(0, 1)


def _conv_by_patches(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Pair, padding: Pair
) -> Tensor:
    """Convolve by a product of patches [S, B*H'*W', h*w*I] and weights [S, h*w*I, O]."""
    clients, outside, inside, high, wide = weight.shape
    patches: Tensor = _Patches.apply(  # type: ignore[no-untyped-call]  # torch does not type it
        x.permute(0, 2, 3, 1), (high, wide), stride, padding
    )
    rows, columns = patches.shape[1:3]
    weights = weight.permute(0, 1, 3, 4, 2).reshape(clients, outside, -1)
    bias = None if bias is None else bias.to(x.dtype)
    y = multiply_rows(patches.view(clients, -1, high * wide * inside), weights, bias)
    return y.view(-1, rows, columns, outside).permute(0, 3, 1, 2)


class _Patches(torch.autograd.Function):
    """Patches [N, H', W', h*w*I] of x [N, H, W, I]; gradients are added up in one tensor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: Pair, stride: Pair, padding: Pair) -> Tensor:
        above, left = padding
        padded = F.pad(x, (0, 0, left, left, above, above))
        samples, height, width, inside = padded.shape
        ctx.shape, ctx.padding = padded.shape, padding
        ctx.pixels, rows, columns = _pixels(height, width, kernel, stride)
        patches = padded.reshape(samples, -1, inside).index_select(1, ctx.pixels)
        return patches.view(samples, rows, columns, -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        (samples, height, width, inside), (above, left) = ctx.shape, ctx.padding
        padded = grad.new_zeros(samples, height * width, inside)
        padded.index_add_(1, ctx.pixels, grad.reshape(samples, -1, inside))
        pixels = padded.view(ctx.shape)
        return pixels[:, above : height - above, left : width - left], None, None, None


@lru_cache(maxsize=256)
def _pixels(height: int, width: int, kernel: Pair, stride: Pair) -> tuple[Tensor, int, int]:
    """Return the pixels of an image that each tap of each patch meets, [H'*W'*h*w]; H'; W'."""
    pixels = torch.arange(height * width).view(height, width)
    patches = pixels.unfold(0, kernel[0], stride[0]).unfold(1, kernel[1], stride[1])
    rows, columns = patches.shape[:2]
    return patches.flatten(), rows, columns
