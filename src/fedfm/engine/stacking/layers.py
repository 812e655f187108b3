"""S copies of a network as one network, each with its own weights.

The samples of S clients are one after another in the batch: an activation is [S*B, ...], and client
s has rows s*B to (s+1)*B. Layers without weights need no change. Weights are [S, ...]: a linear
layer becomes a batched product, a convolution a batched product over patches, and a batch norm
normalises each client's rows.
"""

import copy
import math
from itertools import pairwise
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedfm.engine.stacking.pooling import StackedMaxPool2d
from fedfm.models.resnet import add_relu
from fedfm.models.simplex import Simplex
from fedfm.models.standardised import StandardisedConv2d, standardise

PATCHES = {"cpu": 200_000, "cuda": 4_000_000}
"""With more numbers in a client's patches, fp32 convolutions run client by client."""


class Unstackable(Exception):
    """The network cannot be stacked; the message says why."""


def by_client(x: Tensor, clients: int) -> Tensor:
    """View [S*B, ...] as [S, B, ...]."""
    return torch.unflatten(x, 0, (clients, -1))


def affine(x: Tensor, weight: Tensor | None, bias: Tensor | None, axis: int) -> Tensor:
    """Return x [S*B, ...] times weight plus bias, each [S, ...] along x's axes from `axis` on."""
    for value, combine in ((weight, torch.mul), (bias, torch.add)):
        if value is not None:
            clients = by_client(x, len(value))
            after = [1] * (clients.ndim - axis - value.ndim)
            shaped = value.reshape(len(value), *[1] * axis, *value.shape[1:], *after)
            x = combine(clients, shaped.to(x.dtype)).flatten(0, 1)
    return x


def to_lower_precision(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Cast both factors to the lower of their precisions.

    They differ if weights are frozen, which are not cast beforehand, or if the network created
    tensors itself. Under autocast they get its precision.
    """
    low = min(x.dtype, weight.dtype, key=lambda dtype: dtype.itemsize)
    if torch.is_autocast_enabled(x.device.type):
        low = torch.get_autocast_dtype(x.device.type)
    return x.to(low), weight.to(low)


class _Conv2d(nn.Conv2d):
    """weight [S, O, I/g, h, w], bias [S, O]; [S*B, I, H, W] -> [S*B, O, H', W']."""

    def forward(self, input: Tensor) -> Tensor:
        x, weight = to_lower_precision(input, self._filters())
        patches = x.numel() * math.prod(self.kernel_size) // len(weight)
        small = x.dtype == torch.bfloat16 or patches <= PATCHES[x.device.type]
        if not small or self.groups > 1 or self.dilation != (1, 1):
            return self._one_by_one(x, weight)
        return affine(self._product(x, weight), None, self.bias, 1)

    def _filters(self) -> Tensor:
        return self.weight

    def _product(self, x: Tensor, weight: Tensor) -> Tensor:
        if not x.is_cuda:
            return _conv_by_patches(x, weight, *self._geometry)
        from fedfm.engine.kernels.convolution import stacked_conv2d

        return stacked_conv2d(x, weight, *self._geometry)

    @property
    def _geometry(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Stride and padding; `stack_module` refuses padding given by name."""
        return cast(tuple[tuple[int, int], tuple[int, int]], (self.stride, self.padding))

    def _one_by_one(self, x: Tensor, weight: Tensor) -> Tensor:
        bias = [None] * len(weight) if self.bias is None else self.bias.to(x.dtype)
        clients = zip(by_client(x, len(weight)), weight, bias, strict=True)
        settings = *self._geometry, self.dilation, self.groups
        return torch.cat([F.conv2d(own_x, w, b, *settings) for own_x, w, b in clients])


class _StandardisedConv2d(_Conv2d):
    """The same with standardised filters."""

    rho: float

    def _filters(self) -> Tensor:
        return standardise(self.weight, self.rho).to(self.weight.dtype)


def _conv_by_patches(
    x: Tensor, weight: Tensor, stride: tuple[int, int], padding: tuple[int, int]
) -> Tensor:
    """Convolve by a product of patches [S, B*H'*W', h*w*I] and weights [S, h*w*I, O]."""
    clients, outside, inside, high, wide = weight.shape
    (down, right), (above, left) = stride, padding
    x = F.pad(x.permute(0, 2, 3, 1), (0, 0, left, left, above, above))
    rows, columns = (x.shape[1] - high) // down + 1, (x.shape[2] - wide) // right + 1
    taps = [
        x[:, i : i + down * (rows - 1) + 1 : down, j : j + right * (columns - 1) + 1 : right]
        for i in range(high)
        for j in range(wide)
    ]
    patches = torch.cat(taps, -1).view(clients, -1, high * wide * inside)
    weights = weight.permute(0, 1, 3, 4, 2).reshape(clients, outside, -1)
    y = torch.bmm(patches, weights.mT)
    return y.view(-1, rows, columns, outside).permute(0, 3, 1, 2)


class _Linear(nn.Linear):
    """weight [S, O, I], bias [S, O]; [S*B, ..., I] -> [S*B, ..., O]."""

    def forward(self, input: Tensor) -> Tensor:
        x, weight = to_lower_precision(input, self.weight)
        rows = by_client(x, len(weight)).flatten(1, -2)
        if self.bias is None:
            y = torch.bmm(rows, weight.mT)
        else:
            y = torch.baddbmm(self.bias.unsqueeze(1).to(rows.dtype), rows, weight.mT)
        return y.view(*input.shape[:-1], -1)


COUNTER = "num_batches_tracked"


class _BatchNorm(nn.BatchNorm2d):
    """weight, bias, running statistics [S, C]; [S*B, C, ...] -> the same shape.

    The counter of batches, which nothing depends on, is updated by `StackedNetwork.count_batches`.
    """

    def forward(self, input: Tensor) -> Tensor:
        if self._fused(input):
            return self._by_kernel(input)
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
        from fedfm.engine.kernels.normalisation import stacked_batch_norm

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

    def forward(self, input: Tensor) -> Tensor:
        return affine(F.group_norm(input, self.num_groups, eps=self.eps), self.weight, self.bias, 1)


class _LayerNorm(nn.LayerNorm):
    """weight, bias [S, F]; [S*B, ..., F] -> the same shape."""

    def forward(self, input: Tensor) -> Tensor:
        x = F.layer_norm(input, self.normalized_shape, eps=self.eps)
        return affine(x, self.weight, self.bias, input.ndim - len(self.normalized_shape))


class _Embedding(nn.Embedding):
    """weight [S, V, F]; ids [S*B, ...] -> [S*B, ..., F]."""

    def forward(self, input: Tensor) -> Tensor:
        clients, rows, _ = self.weight.shape
        ids = by_client(input, clients)
        first = torch.arange(0, clients * rows, rows, device=ids.device)
        ids = ids + first.view(-1, *[1] * (ids.ndim - 1))
        vectors = F.embedding(ids, self.weight.flatten(0, 1)).flatten(0, 1)
        if self.padding_idx is None:
            return vectors
        return torch.where((input == self.padding_idx).unsqueeze(-1), vectors.detach(), vectors)


class _Simplex(Simplex):
    """scale [S]; [S*B, C] -> [S*B, C]."""

    def forward(self, x: Tensor) -> Tensor:
        return affine(self.cosines(x), self.scale, None, 1)


_STACKED: dict[type[nn.Module], type[nn.Module]] = {
    nn.Conv2d: _Conv2d,
    StandardisedConv2d: _StandardisedConv2d,
    Simplex: _Simplex,
    nn.Linear: _Linear,
    nn.Embedding: _Embedding,
    nn.BatchNorm1d: _BatchNorm,
    nn.BatchNorm2d: _BatchNorm,
    nn.GroupNorm: _GroupNorm,
    nn.LayerNorm: _LayerNorm,
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
        stack_layer(layer)
    return copied
