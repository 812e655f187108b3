"""Refuse networks whose output is not a function of one sample and the weights."""

import copy
from collections.abc import Sized
from typing import Any

import torch
from torch import Tensor, nn

from fedfm.core.errors import require
from fedfm.core.inputs import InputTree, call_network, input_leaves, map_inputs, to_like


def check_tensors(model: nn.Module) -> None:
    """Refuse a model whose parameters are on several devices or of several types."""
    first_name, first = next(iter(model.named_parameters()))
    for name, parameter in model.named_parameters():
        for ours, theirs in ((parameter.dtype, first.dtype), (parameter.device, first.device)):
            require(
                ours == theirs,
                f"{type(model).__name__}: '{name}' is {ours}, but '{first_name}' is {theirs}: move "
                "all parameters to one device and one type, as by model.to(...)",
            )


def check_forward(model: nn.Module, example: InputTree) -> None:
    """Refuse a forward pass that depends on other samples, on earlier calls, or on chance.

    `example` has inputs [M, ...]. The checks run in evaluation mode; the model is not changed.
    """
    name = type(model).__name__
    copied = copy.deepcopy(model, {id(p): p for p in model.parameters()}).eval()
    inputs = to_like(example, next(model.parameters()))
    before = _list_state(copied)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        first, again = call_network(copied, inputs), call_network(copied, inputs)
        changed = [place for place, value in _list_state(copied).items() if before[place] != value]
        require(
            not changed,
            f"{name}.forward changes '{', '.join(changed[:3])}', so that a client's training would "
            "depend on what ran before: keep such a value in a buffer (register_buffer)",
        )
        require(
            _agree(first, again),
            f"{name} returns another output when called again in evaluation mode: draw random "
            "numbers only if self.training",
        )
        if len(input_leaves(inputs)[0]) > 1:
            alone = call_network(copied, map_inputs(lambda leaf: leaf[:1], inputs))
            require(
                _agree([output[:1] for output in first], alone),
                f"in evaluation mode, the output of {name} for a sample depends on the rest of its "
                "batch: compute each sample by itself",
            )


def _list_state(model: nn.Module) -> dict[str, Any]:
    """Return what modules keep as plain numbers and texts, and the lengths of what they collect."""
    state: dict[str, Any] = {}
    for path, layer in model.named_modules():
        for name, value in vars(layer).items():
            place = f"{path}.{name}".removeprefix(".")
            if name.startswith("_") or name == "training":
                continue
            if isinstance(value, int | float | str):
                state[place] = value
            elif isinstance(value, list | dict | set) and isinstance(value, Sized):
                state[place] = len(value)
    return state


def _agree(ours: Any, theirs: Any) -> bool:
    """Return whether outputs are the same but for rounding."""
    pairs: list[tuple[Tensor, Tensor]] = list(zip(ours, theirs, strict=True))
    return all(
        torch.allclose(one, other, rtol=1e-2, atol=1e-3 * max(1.0, float(one.abs().max())))
        or not bool(one.isfinite().all())
        for one, other in pairs
    )
