"""Convolutional networks on a GPU: kernels against float64, and whole runs against the loop."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedfm.engine import graphs
from fedfm.engine.kernels.columns import scale_columns, sum_columns
from fedfm.engine.kernels.convolution import branch_conv2d
from fedfm.engine.kernels.depthwise import stacked_depthwise
from fedfm.engine.kernels.group_norm import stacked_group_norm
from fedfm.methods import FedAvg
from fedfm.verify import fixtures
from tests.engine.networks import EVERY, make
from tests.gpu.test_executors import distance, played, same

CLIENTS, BATCH = 3, 5


@pytest.fixture(autouse=True)
def everything_captured(monkeypatch):
    monkeypatch.setattr(graphs, "MIN_STEPS", 1)


def random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, device="cuda").to(dtype).requires_grad_()


def images(channels: int, side: int, dtype: torch.dtype) -> Tensor:
    x = random(CLIENTS * BATCH, side, side, channels, dtype=dtype).detach()
    return x.movedim(-1, 1).requires_grad_()


def both(channels: int) -> tuple[Tensor, Tensor]:
    """A weight and a bias for every client and channel."""
    return random(CLIENTS, channels), random(CLIENTS, channels)


def near(y: Tensor, expected: Tensor, leaves: list[Tensor], tolerance: float) -> bool:
    """Whether outputs and gradients agree, relative to their norms."""
    slope = torch.randn_like(expected)
    found = torch.autograd.grad(y, leaves, slope.to(y.dtype))
    wanted = torch.autograd.grad(expected, leaves, slope.to(y.dtype).double())
    pairs = zip((y, *found), (expected, *wanted), strict=True)
    return all((a.double() - b).norm() <= tolerance * b.norm() for a, b in pairs)


PRECISIONS = [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)]


@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
@pytest.mark.parametrize("activation", [None, "relu", "silu"])
@pytest.mark.parametrize(
    ("channels", "groups", "side"),
    [(64, 8, 16), (64, 32, 32), (512, 32, 1), (96, 8, 7), (64, 64, 8), (16, 1, 64), (3, 3, 5)],
)
def test_group_norm(channels, groups, side, activation, dtype, tolerance):
    torch.manual_seed(0)
    x, weight, bias = images(channels, side, dtype), *both(channels)
    y = stacked_group_norm(x, weight, bias, groups, 1e-5, activation)
    wide = zip(x.double().chunk(CLIENTS), weight.double(), bias.double(), strict=True)
    expected = torch.cat([F.group_norm(own, groups, w, b, 1e-5) for own, w, b in wide])
    if activation:
        expected = getattr(F, activation)(expected)
    assert near(y, expected, [x, weight, bias], tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
def test_group_norm_with_a_shortcut(dtype, tolerance):
    torch.manual_seed(0)
    x, shortcut = (images(64, 8, dtype) for _ in range(2))
    weight, bias = both(64)
    y = stacked_group_norm(x, weight, bias, 32, 1e-5, "relu", shortcut)
    wide = zip(x.double().chunk(CLIENTS), weight.double(), bias.double(), strict=True)
    normed = torch.cat([F.group_norm(own, 32, w, b, 1e-5) for own, w, b in wide])
    assert near(y, F.relu(normed + shortcut.double()), [x, shortcut, weight, bias], tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
@pytest.mark.parametrize(
    ("channels", "kernel", "stride", "padding", "dilation"),
    [(64, 3, 1, 1, 1), (24, 7, 2, 3, 1), (130, 3, 1, 2, 2), (3, 1, 1, 0, 1)],
)
def test_depthwise(channels, kernel, stride, padding, dilation, dtype, tolerance):
    torch.manual_seed(0)
    x, bias = images(channels, 16, torch.float32), random(CLIENTS, channels)
    weight = random(CLIENTS, channels, 1, kernel, kernel, dtype=dtype)
    settings = (stride, stride), (padding, padding), (dilation, dilation)
    y = stacked_depthwise(x, weight, bias, *settings)
    rounded = x.to(dtype).double()
    each = zip(rounded.chunk(CLIENTS), weight.double(), bias.double(), strict=True)
    expected = torch.cat([F.conv2d(a, w, b, *settings, channels) for a, w, b in each])
    assert near(y, expected, [x, weight, bias], tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
@pytest.mark.parametrize(("channels", "kernel", "stride"), [(64, 1, 1), (64, 3, 2), (3, 3, 1)])
def test_two_branches(channels, kernel, stride, dtype, tolerance):
    torch.manual_seed(0)
    x, bias = images(channels, 16, dtype), random(CLIENTS, 32)
    weight = random(CLIENTS, 32, channels, kernel, kernel, dtype=dtype)
    settings = (stride, stride), (kernel // 2, kernel // 2)
    y, same = branch_conv2d(x, weight, *settings, bias)
    each = zip(x.double().chunk(CLIENTS), weight.double(), bias.double(), strict=True)
    expected = torch.cat([F.conv2d(a, w, b, *settings) for a, w, b in each])
    both = torch.cat([y.flatten(), same.flatten()])
    assert near(
        both, torch.cat([expected.flatten(), x.double().flatten()]), [x, weight, bias], tolerance
    )


@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
@pytest.mark.parametrize("shape", [(BATCH, 16, 16, 64), (BATCH, 33, 200), (BATCH, 3)])
def test_columns(shape, dtype, tolerance):
    torch.manual_seed(0)
    x, scale = random(CLIENTS, *shape, dtype=dtype), random(CLIENTS, shape[-1])
    numbers = scale.double().view(CLIENTS, *[1] * (len(shape) - 1), -1)
    assert near(scale_columns(x, scale), x.double() * numbers, [x, scale], tolerance)
    sums = sum_columns(x.detach(), CLIENTS)
    torch.testing.assert_close(
        sums.double(), x.detach().double().flatten(1, -2).sum(1), rtol=1e-4, atol=1e-3
    )


@pytest.mark.parametrize("name", ["layer scale", "depthwise", "norms and activations"])
def test_a_repeated_run_is_bitwise_the_same_in_bf16(name):
    settings = {"shape": EVERY[name][1], "rounds": 2, "precision": "bf16"}
    once, again = (played("graph", (FedAvg(),), module=make(name), **settings) for _ in range(2))
    exact = played("loop", (FedAvg(),), module=make(name), shape=EVERY[name][1], rounds=2)
    assert same(once, again)
    assert distance(once, exact) < 0.1


@pytest.mark.parametrize("name", ["depthwise", "norms and activations"])
def test_captured_steps_are_as_exact_as_a_loop(name):
    settings = {"shape": EVERY[name][1], "rounds": 2}
    exact = played("loop", (FedAvg(),), dtype=torch.float64, module=make(name), **settings)
    loop, graph = (
        distance(played(kind, (FedAvg(),), module=make(name), **settings), exact)
        for kind in ("loop", "graph")
    )
    assert graph <= 10 * loop + 1e-6


def test_a_residual_network_with_group_norm_takes_the_steps_of_the_loop():
    shape = (3, 32, 32)
    settings = {
        "shape": shape,
        "epochs": 1,
        "rounds": 1,
        "samples": fixtures.split_samples((16, 16, 16)),
    }
    runs = {}
    for name, dtype in (("loop", torch.float64), ("loop", torch.float32), ("graph", torch.float32)):
        module = fixtures.make_network("resnet18", shape=shape, width=16, norm="group", groups=4)
        runs[name, dtype] = played(name, (FedAvg(),), module=module, dtype=dtype, **settings)
    exact = runs["loop", torch.float64]
    loop, graph = (distance(runs[name, torch.float32], exact) for name in ("loop", "graph"))
    assert graph <= 10 * loop + 1e-6
