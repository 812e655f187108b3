"""The inputs of a network: a tensor, or a dict or tuple of tensors.

Samples are the first dimension of every leaf, [N, ...]. Leaves may have any type. Floats and uint8
(images) are quantities: they reach the network as floats. Other integers (token ids) and booleans
(masks) reach it as they are.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fedfm.core.errors import UserError, require

InputTree = Any
"""A tensor [N, ...], or a dict or tuple of input trees."""


def make_inputs(value: Any, name: str = "inputs") -> InputTree:
    """Return tensors, mappings and tuples of them as an input tree; refuse anything else."""
    if isinstance(value, Mapping):
        named = {str(key): make_inputs(part, f"{name}[{key!r}]") for key, part in value.items()}
        require(len(named) > 0, f"{name}: an empty dict")
        return named
    if isinstance(value, tuple):
        require(len(value) > 0, f"{name}: an empty tuple")
        return tuple(make_inputs(part, f"{name}[{i}]") for i, part in enumerate(value))
    if isinstance(value, list) and all(isinstance(part, Tensor) for part in value):
        raise UserError(
            f"{name} are a list of {len(value)} tensors: join samples of one shape by "
            "torch.stack(...), pad others first (torch.nn.utils.rnn.pad_sequence)"
        )
    require(
        isinstance(value, Tensor),
        f"{name} must be a torch.Tensor, not a {type(value).__name__}: convert it with "
        "torch.as_tensor(...)",
    )
    require(value.ndim > 0, f"{name} must have the samples as first dimension, not be one number")
    return value


def map_inputs(fn: Callable[..., Any], inputs: InputTree, *others: InputTree) -> Any:
    """Apply a function to corresponding leaves of inputs of one structure."""
    if isinstance(inputs, Tensor):
        return fn(inputs, *others)
    if isinstance(inputs, dict):
        return {
            key: map_inputs(fn, value, *(other[key] for other in others))
            for key, value in inputs.items()
        }
    return tuple(map_inputs(fn, *parts) for parts in zip(inputs, *others, strict=True))


def name_leaves(inputs: InputTree, name: str = "inputs") -> dict[str, Tensor]:
    """Return the leaves by name, as in "inputs['mask']"; keys of a dict in sorted order."""
    if isinstance(inputs, Tensor):
        return {name: inputs}
    parts = sorted(inputs.items()) if isinstance(inputs, dict) else list(enumerate(inputs))
    return {
        path: leaf
        for key, part in parts
        for path, leaf in name_leaves(part, f"{name}[{key!r}]").items()
    }


def input_leaves(inputs: InputTree) -> list[Tensor]:
    """Return the leaves; keys of a dict in sorted order."""
    return [inputs] if isinstance(inputs, Tensor) else list(name_leaves(inputs).values())


def is_quantity(leaf: Tensor) -> bool:
    """Return whether a leaf holds floats or uint8, not ids or flags."""
    return leaf.is_floating_point() or leaf.dtype == torch.uint8


def holds_ids(leaf: Tensor) -> bool:
    """Return whether a leaf holds integers that stay integers, such as token ids."""
    return not is_quantity(leaf) and leaf.dtype != torch.bool and not leaf.is_complex()


def input_shape(inputs: InputTree) -> Any:
    """Return the shape of one sample; a dict or tuple of shapes if a sample is one."""
    return map_inputs(lambda leaf: tuple(leaf.shape[1:]), inputs)


def describe_inputs(inputs: InputTree) -> str:
    """Describe samples by shape and, except for quantities, type: "shape (16,) of int64"."""

    def describe(leaf: Tensor) -> str:
        kind = "" if is_quantity(leaf) else f" of {str(leaf.dtype).removeprefix('torch.')}"
        return f"shape {tuple(leaf.shape[1:])}{kind}"

    names = {path.removeprefix("inputs"): leaf for path, leaf in name_leaves(inputs).items()}
    return ", ".join(f"{name} {describe(leaf)}".strip() for name, leaf in names.items())


def to_like(inputs: InputTree, like: Tensor) -> InputTree:
    """Put inputs on the device of `like`; quantities get its dtype."""
    return map_inputs(
        lambda leaf: leaf.to(like.device, like.dtype if is_quantity(leaf) else None), inputs
    )


def call_network(network: nn.Module, inputs: InputTree) -> Any:
    """Call a network: a dict gives keywords, a tuple positions, a tensor the only argument."""
    if isinstance(inputs, dict):
        return network(**inputs)
    return network(*inputs) if isinstance(inputs, tuple) else network(inputs)
