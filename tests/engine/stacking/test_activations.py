"""Sequences hand activations to the layers before them, and compute the same."""

import pytest
import torch
from torch import Tensor, nn

from fedfm.engine.stacking import activations
from fedfm.engine.stacking.activations import apply_activation, fuse_activations


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch):
    monkeypatch.setattr(activations, "runs_kernels", lambda _: True)


class Shift(nn.Module):
    """Adds one, and applies an activation if it is told to."""

    activations = ("relu",)

    def __init__(self) -> None:
        super().__init__()
        self.given: list[str | None] = []

    def forward(self, x: Tensor, activation: str | None = None) -> Tensor:
        self.given.append(activation)
        return apply_activation(activation, x + 1)


def sequence(*layers: nn.Module) -> nn.Sequential:
    made = nn.Sequential(*layers)
    fuse_activations(made)
    return made


X = torch.linspace(-3, 3, 7)


def test_an_activation_that_the_layer_can_apply_is_applied_once():
    first, second = Shift(), Shift()
    y = sequence(first, nn.ReLU(), second, nn.Sigmoid())(X)
    assert torch.equal(y, torch.sigmoid(torch.relu(X + 1) + 1))
    assert first.given == ["relu"]
    assert second.given == [None]


def test_other_activations_are_applied_by_themselves():
    shift = Shift()
    assert torch.equal(sequence(shift, nn.SiLU())(X), nn.functional.silu(X + 1))
    assert shift.given == [None]


def test_two_activations_are_both_applied():
    y = sequence(Shift(), nn.ReLU(), nn.SiLU())(X)
    assert torch.equal(y, nn.functional.silu(torch.relu(X + 1)))


def test_hooks_see_what_they_asked_for():
    shift, seen = Shift(), []
    shift.register_forward_hook(lambda layer, given, y: seen.append(y))
    y = sequence(shift, nn.ReLU())(X)
    assert torch.equal(y, torch.relu(X + 1))
    assert torch.equal(seen[0], X + 1)


def test_an_empty_sequence_returns_its_input():
    assert sequence()(X) is X


def test_elsewhere_layers_and_activations_are_apart(monkeypatch):
    monkeypatch.setattr(activations, "runs_kernels", lambda _: False)
    first = Shift()
    assert torch.equal(sequence(first, nn.ReLU())(X), torch.relu(X + 1))
    assert first.given == [None]
