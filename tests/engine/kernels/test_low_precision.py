"""Whole rounds in bf16 without a GPU: the update, a kernel, is interpreted, the rest is torch's."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from fedfm.core import trees
from fedfm.engine.executors import StackedExecutor
from fedfm.engine.update import Clock, update
from fedfm.optim import Adam
from fedfm.rounds.round import run_round
from fedfm.rounds.state import State
from fedfm.verify import fixtures
from tests.engine.test_graphs import METHODS

ROUNDS = 2


def played(module: nn.Module, method: str, low: torch.dtype | None) -> State:
    fed = fixtures.make_federation(module, fixtures.make_images(), *METHODS[method])
    fed = replace(
        fed,
        executor=StackedExecutor(
            module, fixtures.make_device_data(fixtures.make_images(), module), low
        ),
    )
    state = fixtures.start(fed)
    for _ in range(ROUNDS):
        state, _ = run_round(state, fed)
    return state


def learned(state: State) -> dict[str, torch.Tensor]:
    """The global parameters, and those that the first client keeps."""
    return state.model.params | state.clients.get(0).get("model", {}).get("params", {})


def assert_near(module: nn.Module, method: str) -> None:
    """Bf16 changes something, and not much: its numbers have eight bits.

    FedUV divides squared distances by their median, which doubles what rounding does.
    """
    most = 0.1 if method == "feduv" else 0.05
    exact, low = (learned(played(module, method, each)) for each in (None, torch.bfloat16))
    off = torch.cat([(low[name] - value).flatten() for name, value in exact.items()])
    size = torch.cat([value.flatten() for value in exact.values()])
    assert 0 < off.norm() / size.norm() < most


@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains_and_measures_in_bf16(method):
    assert_near(fixtures.make_network("mlp", hidden=[9], norm="batch"), method)


@pytest.mark.parametrize("method", ["moon", "fedfm-lite every 2"])
@pytest.mark.parametrize("layer", ["body.0", "body.9"])
def test_networks_with_frozen_layers_do_as_well(layer, method):
    module = fixtures.make_network(norm="batch")
    module.get_submodule(layer).requires_grad_(False)
    assert_near(module, method)


def test_copies_follow_adam_as_well():
    torch.manual_seed(0)
    params = {"weight": torch.randn(2, 3, 4), "bias": torch.randn(2, 3)}
    low, grads = {"weight": params["weight"].bfloat16()}, trees.tree_map(torch.ones_like, params)
    moments = {name: trees.tree_map(torch.zeros_like, params) for name in Adam.moments}
    grads["weight"] = grads["weight"].bfloat16()
    before = trees.tree_map(torch.clone, params)
    adam = Adam(0.1)
    update(params, grads, moments, low, adam, Clock(adam, (), torch.device("cpu")))
    for name, param in params.items():
        torch.testing.assert_close(param, before[name] - 0.1)
    torch.testing.assert_close(low["weight"].float(), params["weight"], rtol=2**-7, atol=0)
