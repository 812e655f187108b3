"""S copies of a network as one network, each with its own weights.

The samples of S clients are one after another in the batch: an activation is [S*B, ...], and client
s has rows s*B to (s+1)*B. Layers without weights need no change. Weights are [S, ...]: a linear
layer becomes a batched product, a convolution a batched product over patches, and a batch norm
normalises each client's rows.
"""

import copy
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedfm.engine.stacking.activations import apply_activation, fuse_activations
from fedfm.engine.stacking.convolution import StackedConv2d, StackedStandardisedConv2d
from fedfm.engine.stacking.pooling import StackedMaxPool2d
from fedfm.engine.stacking.rows import affine, by_client
from fedfm.engine.stacking.tokens import StackedEmbedding, StackedLayerNorm, StackedLinear
from fedfm.models.resnet import add_relu
from fedfm.models.simplex import Simplex
from fedfm.models.standardised import StandardisedConv2d


class Unstackable(Exception):
    """The network cannot be stacked; the message says why."""


COUNTER = "num_batches_tracked"


class _BatchNorm(nn.BatchNorm2d):
    """weight, bias, running statistics [S, C]; [S*B, C, ...] -> the same shape.

    The counter of batches, which nothing depends on, is updated by `StackedNetwork.count_batches`.
    """

    activations = ("relu",)

    def forward(self, input: Tensor, activation: str | None = None) -> Tensor:
        if self._fused(input):
            return self._by_kernel(input, relu=activation == "relu")
        return apply_activation(activation, self._normalise(input))

    def _normalise(self, input: Tensor) -> Tensor:
        if not self.training and self.running_mean is not None:
            return self._normalise_running(input)
        values: Any = self.running_mean, self.running_var, self.weight, self.bias
        clients = next(len(value) for value in values if value is not None)
        columns = ([None] * clients if value is None else value for value in values)
        rows = zip(by_client(input, clients), *columns, strict=True)
        return torch.cat([self._normalise_client(*row) for row in rows])

    def _normalise_client(
        self, x: Tensor, mean: Tensor, variance: Tensor, weight: Tensor, bias: Tensor
    ) -> Tensor:
        """Normalise one client's samples [B, C, ...] by the statistics of this batch."""
        assert self.momentum is not None
        return F.batch_norm(x, mean, variance, weight, bias, True, self.momentum, self.eps)

    def activate(self, input: Tensor, shortcut: Tensor | None) -> Tensor:
        """Return ReLU(norm(input) + shortcut), in one pass over memory on a GPU."""
        if not self._fused(input):
            return add_relu(self(input), shortcut)
        return self._by_kernel(input, relu=True, residual=shortcut)

    def _fused(self, input: Tensor) -> bool:
        affine = self.weight is not None and self.bias is not None
        return input.is_cuda and self.training and affine and self.running_mean is not None

    def _by_kernel(self, input: Tensor, **options: Any) -> Tensor:
        from fedfm.engine.kernels.batch_norm import stacked_batch_norm

        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.momentum is not None
        running = self.running_mean, self.running_var
        settings = self.momentum, self.eps
        return stacked_batch_norm(input, self.weight, self.bias, *running, *settings, **options)

    def _normalise_running(self, input: Tensor) -> Tensor:
        """Normalise by the running statistics, with one multiplication and addition."""
        assert self.running_mean is not None
        assert self.running_var is not None
        scale = torch.rsqrt(self.running_var + self.eps)
        scale = scale if self.weight is None else scale * self.weight
        shift = -self.running_mean * scale
        return affine(input, scale, shift if self.bias is None else shift + self.bias, 1)


class _GroupNorm(nn.GroupNorm):
    """weight, bias [S, C]; [S*B, C, ...] -> the same shape."""

    activations = ("relu", "silu")

    def forward(self, input: Tensor, activation: str | None = None) -> Tensor:
        if self._fused(input):
            return self._by_kernel(input, activation)
        x = F.group_norm(input, self.num_groups, eps=self.eps)
        return apply_activation(activation, affine(x, self.weight, self.bias, 1))

    def activate(self, input: Tensor, shortcut: Tensor | None) -> Tensor:
        """Return ReLU(norm(input) + shortcut), in one pass over memory on a GPU."""
        if not self._fused(input):
            return add_relu(self(input), shortcut)
        return self._by_kernel(input, "relu", shortcut)

    def _fused(self, input: Tensor) -> bool:
        return input.is_cuda and self.affine and input.dtype != torch.float64

    def _by_kernel(self, input: Tensor, *options: Any) -> Tensor:
        from fedfm.engine.kernels.group_norm import stacked_group_norm

        settings = self.num_groups, self.eps
        return stacked_group_norm(input, self.weight, self.bias, *settings, *options)


class _Simplex(Simplex):
    """scale [S]; [S*B, C] -> [S*B, C]."""

    def forward(self, x: Tensor) -> Tensor:
        return affine(self.cosines(x), self.scale, None, 1)


_STACKED: dict[type[nn.Module], type[nn.Module]] = {
    nn.Conv2d: StackedConv2d,
    StandardisedConv2d: StackedStandardisedConv2d,
    nn.Linear: StackedLinear,
    nn.Embedding: StackedEmbedding,
    Simplex: _Simplex,
    nn.BatchNorm1d: _BatchNorm,
    nn.BatchNorm2d: _BatchNorm,
    nn.GroupNorm: _GroupNorm,
    nn.LayerNorm: StackedLayerNorm,
    nn.MaxPool2d: StackedMaxPool2d,
}


def find_refusal(layer: nn.Module) -> str | None:
    """Return why a layer has no stacked form; None if it has one or needs none."""
    kind = type(layer).__name__
    weights = [*layer._parameters.values(), *layer._buffers.values()]
    holds = any(weight is not None for weight in weights)
    if isinstance(layer, nn.modules.batchnorm._BatchNorm):
        if layer.momentum is None:
            return "keeps a cumulative average"
        if not holds:
            return f"({kind}) has neither weights nor statistics"
    if type(layer) in _STACKED:
        if getattr(layer, "padding_mode", "zeros") != "zeros":
            return f"has padding_mode='{layer.padding_mode}'"
        if isinstance(getattr(layer, "padding", 0), str):
            return f"has padding='{layer.padding}'"
        if getattr(layer, "max_norm", None) is not None:
            return "changes its weights in the forward pass (max_norm)"
    elif holds:
        return f"({kind}) has weights, and layers of this type cannot be stacked"
    return None


def stack_layer(layer: nn.Module) -> bool:
    """Turn a layer into its stacked form in place; return whether there is one."""
    if type(layer) not in _STACKED or find_refusal(layer):
        return False
    layer.__class__ = _STACKED[type(layer)]
    return True


def forbid_in_place(layer: nn.Module) -> None:
    """Let a layer make new tensors: autograd forbids changes of what our kernels return."""
    if hasattr(layer, "inplace"):
        setattr(layer, "inplace", False)  # noqa: B010 (mypy takes attributes for tensors)


def _pool_first(layers: nn.Sequential) -> None:
    """Swap ReLU and max-pooling: the same outputs and gradients, with less work."""
    for i, (layer, following) in enumerate(pairwise(layers)):
        pools = type(following) is nn.MaxPool2d and not following.return_indices
        if type(layer) is nn.ReLU and pools:
            layers[i], layers[i + 1] = following, layer


def stack_module(module: nn.Module) -> nn.Module:
    """Copy `module` for parameters and buffers [S, ...] and samples [S*B, ...]."""
    copied = copy.deepcopy(module)
    for name, layer in copied.named_modules():
        if refusal := find_refusal(layer):
            raise Unstackable(f"layer '{name}' {refusal}")
        if isinstance(layer, nn.Sequential):
            _pool_first(layer)
        forbid_in_place(layer)
        fuse_activations(layer)
        stack_layer(layer)
    return copied
