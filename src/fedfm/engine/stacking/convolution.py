"""Convolutions of stacked networks."""

import math
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

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
            return affine(_conv_by_patches(x, weight, *self._geometry), None, self.bias, 1)
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


def _conv_by_patches(x: Tensor, weight: Tensor, stride: Pair, padding: Pair) -> Tensor:
    """Convolve by a product of patches [S, B*H'*W', h*w*I] and weights [S, h*w*I, O]."""
    clients, outside, inside, high, wide = weight.shape
    patches: Tensor = _Patches.apply(  # type: ignore[no-untyped-call]  # torch does not type it
        x.permute(0, 2, 3, 1), (high, wide), stride, padding
    )
    rows, columns = patches.shape[1:3]
    weights = weight.permute(0, 1, 3, 4, 2).reshape(clients, outside, -1)
    y = torch.bmm(patches.view(clients, -1, high * wide * inside), weights.mT)
    return y.view(-1, rows, columns, outside).permute(0, 3, 1, 2)


class _Patches(torch.autograd.Function):
    """Patches [N, H', W', h*w*I] of x [N, H, W, I]; gradients are added up in one tensor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: Pair, stride: Pair, padding: Pair) -> Tensor:
        above, left = padding
        ctx.shape, ctx.geometry = x.shape, (kernel, stride, padding)
        return torch.cat(_taps(F.pad(x, (0, 0, left, left, above, above)), kernel, stride), -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        kernel, stride, (above, left) = ctx.geometry
        samples, height, width, inside = ctx.shape
        padded = grad.new_zeros(samples, height + 2 * above, width + 2 * left, inside)
        taps = _taps(padded, kernel, stride)
        for tap, slope in zip(taps, grad.chunk(len(taps), -1), strict=True):
            tap += slope
        return padded[:, above : above + height, left : left + width], None, None, None


def _taps(x: Tensor, kernel: Pair, stride: Pair) -> list[Tensor]:
    """View the pixels of x [N, H, W, I] that each tap of a filter meets, [N, H', W', I]."""
    (high, wide), (down, right) = kernel, stride
    rows, columns = (x.shape[1] - high) // down + 1, (x.shape[2] - wide) // right + 1
    return [
        x[:, i : i + down * (rows - 1) + 1 : down, j : j + right * (columns - 1) + 1 : right]
        for i in range(high)
        for j in range(wide)
    ]
