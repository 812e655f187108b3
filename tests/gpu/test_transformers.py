"""Transformers in bf16 and Adam on a GPU: kernels, captured steps, attention by torch."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from fedfm.engine import graphs, update
from fedfm.engine.stacked_networks import MappedNetwork, stack_network
from fedfm.methods import FedAvg, FedProx
from fedfm.rounds.round import run_round
from fedfm.verify import fixtures
from tests.engine.gradients import BATCH, CLIENTS, distances, run_kernels
from tests.engine.networks import Block, Headed
from tests.gpu.test_executors import OPTIMIZERS, distance, federation, played, same

WIDTH, TOKENS, NEAR = 64, 17, 0.05


@pytest.fixture(autouse=True)
def everything_captured(monkeypatch):
    monkeypatch.setattr(graphs, "MIN_STEPS", 1)


def make() -> nn.Module:
    """Blocks whose heads are wide enough for torch's fused attention."""
    torch.manual_seed(0)
    return Headed(nn.Sequential(Block(WIDTH, 2), Block(WIDTH, 2), nn.LayerNorm(WIDTH)),
                  TOKENS * WIDTH)  # fmt: skip


def test_gradients_are_near_those_in_float64_and_no_further_than_torchs(monkeypatch):
    """Of every single parameter, with our kernels and without."""
    far = []
    for kernels in (True, False):
        run_kernels(monkeypatch, kernels)
        torch.manual_seed(0)
        module, inputs = make().cuda(), torch.randn(CLIENTS, BATCH, TOKENS, WIDTH, device="cuda")
        net = stack_network(module, inputs[:2], torch.bfloat16)
        assert isinstance(net, MappedNetwork)
        far.append(distances(module, net, inputs))
    ours, theirs = far
    assert 1e-4 < max(ours.values()) < NEAR, ours
    assert all(own < 1.5 * theirs[name] + 1e-3 for name, own in ours.items()), far


@pytest.mark.parametrize("optimizer", ["momentum", "adamw"])
def test_captured_steps_of_a_transformer_are_near_fp32(optimizer):
    ends = []
    for kind, precision in (("loop", "fp32"), ("graph", "bf16")):
        fed, state = federation(
            kind, (FedAvg(),), module=make(), precision=precision, shape=(TOKENS, WIDTH), epochs=1
        )
        fed = replace(fed, training=replace(fed.training, optimizer=OPTIMIZERS[optimizer]))
        for _ in range(2):
            state, _ = run_round(state, fed)
        ends.append(state)
    assert 0 < distance(ends[1], ends[0]) < 2 * NEAR


def test_a_repeated_run_of_linear_layers_and_layer_norms_is_bitwise_the_same():
    def body() -> nn.Module:
        torch.manual_seed(0)
        inner = nn.Sequential(nn.Linear(8, 70), nn.GELU(), nn.LayerNorm(70), nn.Linear(70, 8))
        return Headed(inner, 48)

    once, again, stacked = (
        played(kind, (FedAvg(),), 2, module=body(), shape=(6, 8), precision="bf16")
        for kind in ("graph", "graph", "stacked")
    )
    assert same(once, again)
    assert same(once, stacked)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_large_parameters_take_their_step_in_a_kernel(precision, optimizer, monkeypatch):
    """It is about as exact as a loop in this precision; captured steps read the rate anew."""
    monkeypatch.setattr(update, "LARGE", 1)
    ends = {}
    for name, dtype in (("exact", torch.float64), ("loop", None), ("graph", None)):
        fed, state = federation(
            "graph" if name == "graph" else "loop",
            (FedProx(mu=0.1),),
            module=fixtures.make_network(),
            dtype=dtype or torch.float32,
            precision="fp32" if name == "exact" else precision,
        )
        training = replace(fed.training, optimizer=OPTIMIZERS[optimizer])
        fed = replace(fed, training=training)
        for _ in range(3):
            state, _ = run_round(state, fed)
        ends[name] = state
    off, loop = (distance(ends[name], ends["exact"]) for name in ("graph", "loop"))
    assert off < (max(1e-6, 10 * loop) if precision == "fp32" else 1.5 * loop)
