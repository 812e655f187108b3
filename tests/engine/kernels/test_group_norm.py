"""Group norm of several clients against torch, client by client, in Triton's interpreter."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from fedfm.engine.kernels import group_norm
from fedfm.engine.kernels.group_norm import stacked_group_norm

EPS = 1e-5
ACTIVATIONS = {None: lambda y: y, "relu": F.relu, "silu": F.silu}
# [B, C, ...] and groups
SHAPES = {
    "whole sample": ((3, 16, 4, 4), 4),
    "odd sizes": ((2, 18, 3, 5), 3),
    "one channel a group": ((2, 20, 3, 2), 20),
    "one group": ((2, 6, 5), 1),
    "one position": ((3, 64), 8),
}


def arguments(clients, shape, dtype=torch.float32):
    torch.manual_seed(0)
    batch, c, *space = shape
    x = (torch.randn(clients * batch, *space, c) * 2 + 3).to(dtype).movedim(-1, 1)
    weight, bias = (torch.randn(clients, c, requires_grad=True) for _ in range(2))
    return x.requires_grad_(), weight, bias


def client_by_client(x, weight, bias, groups, activation, residual):
    """The same by torch, in double precision."""
    each = zip(x.double().chunk(len(weight)), weight.double(), bias.double(), strict=True)
    y = torch.cat([F.group_norm(own, groups, w, b, EPS) for own, w, b in each])
    return ACTIVATIONS[activation](y if residual is None else y + residual.double())


def compare(
    inputs: Any, groups: int, activation: Any = None, residual: Any = None, rtol=1e-4, atol=2e-5
):
    x, weight, bias = inputs
    y = stacked_group_norm(x, weight, bias, groups, EPS, activation, residual)
    expected = client_by_client(x, weight, bias, groups, activation, residual)
    assert (y.shape, y.dtype) == (x.shape, x.dtype)
    assert y.movedim(1, -1).is_contiguous()
    leaves = [*inputs] if residual is None else [*inputs, residual]
    slope = torch.randn_like(y)
    found = torch.autograd.grad(y, leaves, slope)
    wanted = torch.autograd.grad(expected, leaves, slope.double())
    for mine, theirs in zip((y, *found), (expected, *wanted), strict=True):
        torch.testing.assert_close(mine.double(), theirs.double(), rtol=rtol, atol=atol)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_every_client_gets_what_torch_gives_it_alone(shape, activation):
    compare(arguments(2, shape[0]), shape[1], activation)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_samples_that_do_not_fit_into_registers(shape, activation, monkeypatch):
    monkeypatch.setattr(group_norm, "RESIDENT", 16)
    monkeypatch.setattr(group_norm, "TILE", 128)
    group_norm._cut.cache_clear()
    compare(arguments(2, shape[0]), shape[1], activation)
    group_norm._cut.cache_clear()


@pytest.mark.parametrize("activation", [None, "relu"])
@pytest.mark.parametrize("limit", [16, 16384])
def test_a_shortcut_is_added_before_the_activation(activation, limit, monkeypatch):
    monkeypatch.setattr(group_norm, "RESIDENT", limit)
    group_norm._cut.cache_clear()
    inputs = arguments(2, (2, 12, 3, 3))
    compare(inputs, 4, activation, torch.randn_like(inputs[0]).requires_grad_())
    group_norm._cut.cache_clear()


def test_bfloat16_activations():
    compare(arguments(2, (3, 16, 4, 4), torch.bfloat16), 4, "silu", rtol=1e-2, atol=4e-2)


def test_values_far_from_zero():
    x, weight, bias = arguments(2, (3, 16, 4, 4))
    y = stacked_group_norm(x + 3000, weight, bias, 4, EPS)
    expected = client_by_client(x + 3000, weight, bias, 4, None, None)
    torch.testing.assert_close(y.double(), expected, rtol=1e-3, atol=2e-3)


def test_a_client_does_not_depend_on_its_company():
    x, weight, bias = arguments(3, (2, 12, 3, 3))
    together = stacked_group_norm(x, weight, bias, 4, EPS, "silu")
    alone = stacked_group_norm(x[2:4], weight[1:2], bias[1:2], 4, EPS, "silu")
    assert torch.equal(together[2:4], alone)


def test_any_memory_layout_is_accepted():
    x, weight, bias = arguments(2, (2, 12, 3, 3))
    compare((x.detach().contiguous().requires_grad_(), weight, bias), 4)


def test_refuses_what_it_cannot_do():
    x, weight, bias = arguments(2, (2, 12, 3, 3))
    with pytest.raises(ValueError, match="residual"):
        stacked_group_norm(x, weight, bias, 4, EPS, None, x[1:])
    with pytest.raises(ValueError, match="SiLU"):
        stacked_group_norm(x, weight, bias, 4, EPS, "silu", x)
