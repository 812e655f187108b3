"""S copies of a network as one network, each with weights of its own.

The client axis is folded into the channels: an activation is [B, S*C, ...], so that convolutions
become grouped, S batch norms over C channels *are* one batch norm over S*C, a linear layer becomes
a batched product, and everything that works elementwise or per channel needs no change at all.
Parameters are [S, ...]; the grouped weight is a view of them, so nothing is copied.
"""

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Unstackable(Exception):
    """The network cannot be run as S copies in one; the message says why."""


def fold(x: Tensor) -> Tensor:
    """[S, B, C, ...] -> [B, S*C, ...]."""
    return x.transpose(0, 1).flatten(1, 2)


def unfold(x: Tensor, clients: int) -> Tensor:
    """[B, S*C, ...] -> [S, B, C, ...]."""
    return x.view(len(x), clients, -1, *x.shape[2:]).transpose(0, 1)


class _Conv2d(nn.Conv2d):
    """weight [S, O, I/g, h, w], bias [S, O]; [B, S*I, H, W] -> [B, S*O, H', W']."""

    def forward(self, input: Tensor) -> Tensor:
        clients = len(self.weight)
        bias = None if self.bias is None else self.bias.flatten()
        weight = self.weight.flatten(0, 1)
        return F.conv2d(
            input, weight, bias, self.stride, self.padding, self.dilation, clients * self.groups
        )


class _Linear(nn.Linear):
    """weight [S, O, I], bias [S, O]; [B, S*I] -> [B, S*O]."""

    def forward(self, input: Tensor) -> Tensor:
        x = unfold(input, len(self.weight))
        if self.bias is None:
            return fold(torch.bmm(x, self.weight.mT))
        return fold(torch.baddbmm(self.bias.unsqueeze(1), x, self.weight.mT))


class _BatchNorm(nn.BatchNorm2d):
    """weight, bias, running statistics [S, C]; [B, S*C, ...] -> the same shape."""

    def forward(self, input: Tensor) -> Tensor:
        weight, bias, mean, variance = (
            None if value is None else value.flatten()
            for value in (self.weight, self.bias, self.running_mean, self.running_var)
        )
        if self.training and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        batch_statistics = self.training or mean is None
        assert self.momentum is not None
        return F.batch_norm(
            input, mean, variance, weight, bias, batch_statistics, self.momentum, self.eps
        )


class _GroupNorm(nn.GroupNorm):
    """weight, bias [S, C]; [B, S*C, ...] -> the same shape."""

    def forward(self, input: Tensor) -> Tensor:
        clients = input.shape[1] // self.num_channels
        weight, bias = (None if p is None else p.flatten() for p in (self.weight, self.bias))
        return F.group_norm(input, clients * self.num_groups, weight, bias, self.eps)


class _LayerNorm(nn.LayerNorm):
    """weight, bias [S, F]; [B, S*F] -> the same shape."""

    def forward(self, input: Tensor) -> Tensor:
        size = self.normalized_shape
        x = F.layer_norm(input.view(len(input), -1, *size), size, eps=self.eps)
        if self.weight is not None:
            x = x * self.weight
        return (x if self.bias is None else x + self.bias).flatten(1)


_STACKED: dict[type[nn.Module], type[nn.Module]] = {
    nn.Conv2d: _Conv2d,
    nn.Linear: _Linear,
    nn.BatchNorm1d: _BatchNorm,
    nn.BatchNorm2d: _BatchNorm,
    nn.GroupNorm: _GroupNorm,
    nn.LayerNorm: _LayerNorm,
}
_RANDOM = (nn.modules.dropout._DropoutNd, nn.RReLU)


def _check_layer(name: str, layer: nn.Module) -> None:
    kind = type(layer).__name__
    if isinstance(layer, _RANDOM):
        raise Unstackable(f"layer '{name}' ({kind}) draws random numbers")
    if type(layer) in _STACKED:
        if getattr(layer, "padding_mode", "zeros") != "zeros":
            raise Unstackable(f"layer '{name}' pads with '{layer.padding_mode}'")
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.momentum is None:
            raise Unstackable(f"layer '{name}' keeps a cumulative average")
    elif any(True for _ in layer.parameters(recurse=False)) or any(
        True for _ in layer.buffers(recurse=False)
    ):
        raise Unstackable(f"layer '{name}' ({kind}) has weights of a kind that is not known here")


def stacked(module: nn.Module) -> nn.Module:
    """A copy of `module` whose parameters and buffers may be [S, ...], on folded activations."""
    copied = copy.deepcopy(module)
    for name, layer in copied.named_modules():
        _check_layer(name, layer)
        if type(layer) in _STACKED:
            layer.__class__ = _STACKED[type(layer)]
    return copied
