"""Activations that follow a layer, computed in the layer's own pass over memory."""

from collections.abc import Callable
from itertools import chain, zip_longest

import torch.nn.functional as F
from torch import Tensor, nn

from fedfm.engine.stacking.rows import runs_kernels

_NAMES: dict[type[nn.Module], str] = {nn.ReLU: "relu", nn.SiLU: "silu"}
_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "silu": F.silu}


def apply_activation(name: str | None, x: Tensor) -> Tensor:
    """Apply the activation of that name, or none."""
    return x if name is None else _FUNCTIONS[name](x)


def fuse_activations(layer: nn.Module) -> None:
    """Let a sequence hand activations to the layers before them, where these can compute them."""
    if type(layer) is nn.Sequential:
        layer.__class__ = _Sequential


class _Sequential(nn.Sequential):
    """A sequence; a layer may name the `activations` that its forward pass can apply at once."""

    def forward(self, input: Tensor) -> Tensor:
        """Apply the layers in order; on a CPU nothing is gained by fusing."""
        if not (isinstance(input, Tensor) and runs_kernels(input)):
            result: Tensor = super().forward(input)  # type: ignore[no-untyped-call]  # torch does not type it
            return result
        done = False
        for layer, following in zip_longest(self, [*self][1:]):
            if done:
                done = False
                continue
            name = _NAMES.get(type(following))
            done = name in getattr(layer, "activations", ()) and not _hooked(layer, following)
            input = layer(input, activation=name) if done else layer(input)
        return input


def _hooked(*layers: nn.Module) -> bool:
    """Return whether somebody looks at what a layer gets or returns."""
    hooks = ((layer._forward_hooks, layer._forward_pre_hooks) for layer in layers)
    return any(chain.from_iterable(hooks))
