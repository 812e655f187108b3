"""Loop, stacked and captured steps on a GPU: one result, whatever the method."""

import gc
import logging
import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from fedfm.core import trees
from fedfm.engine import graphs
from fedfm.engine.choice import make_executor
from fedfm.engine.graphs import CapturedStep, GraphExecutor
from fedfm.engine.streams import StreamsExecutor
from fedfm.methods import (
    PIECES,
    BalancedSoftmax,
    FedAvg,
    FedFM,
    FedFMLite,
    FedNTD,
    FedProx,
    FedSAM,
    Moon,
    Piece,
    Scaffold,
)
from fedfm.optim import Adam, AdamW, Clipping, Schedule, Sgd
from fedfm.rounds.round import run_round
from fedfm.rounds.state import to_tree
from fedfm.verify import fixtures
from tests.engine.networks import EVERY, make
from tests.engine.test_executors import adapted
from tests.rounds.together import run_without_divergence

METHODS: dict[str, tuple[Piece, ...]] = {
    name: (kind(**({"start_round": 0} if "start_round" in kind.__dataclass_fields__ else {})),)
    for name, kind in PIECES.items()
} | {
    "fedfm from round 2": (FedFM(start_round=2),),
    "lite, models every 2": (FedFMLite(start_round=0, models_every=2),),
    "fedprox+fedfm": (FedProx(), FedFM(start_round=0)),
    "scaffold+fedfm": (Scaffold(), FedFM(start_round=0)),
    "moon+fedfm": (Moon(), FedFM(start_round=0)),
    "fedsam+fedfm": (FedSAM(), FedFM(start_round=0)),
    "fedsam, adaptive": (FedSAM(radius=0.5, adaptive=0.2),),
}
ROUNDS = 5


@pytest.fixture(autouse=True)
def everything_captured(monkeypatch):
    monkeypatch.setattr(graphs, "MIN_STEPS", 1)


def federation(
    name, pieces, *, module=None, dtype=torch.float32, precision="fp32", place="cuda", **settings
):
    module = (module or fixtures.make_network(norm="batch")).to("cuda", dtype)
    data = fixtures.make_images(dtype=dtype, shape=settings.pop("shape", (1, 8, 8)))
    fed = fixtures.make_federation(module, data, *pieces, executor="loop", **settings)
    on_device = fixtures.make_device_data(data, module)
    on_device = replace(
        on_device, inputs=on_device.inputs.to(place), labels=on_device.labels.to(place)
    )
    made = make_executor(name, module, on_device, precision)
    return replace(fed, executor=made), fixtures.start(fed)


def played(name, pieces, rounds=ROUNDS, **settings):
    fed, state = federation(name, pieces, **settings)
    for _ in range(rounds):
        state, _ = run_round(state, fed)
    return state


def trees_of(state) -> list[trees.Tree]:
    """The state's trees that hold models: the global one, and those of clients with their own."""
    whole = to_tree(state)
    kept = [whole["clients"][client] for client in sorted(whole["clients"])]
    return [{"model": whole["model"]}, *(one for one in kept if "model" in one)]


def distance(state, exact) -> float:
    """Between all models' parameters in two states, relative to the size of the exact ones."""
    ours, theirs = (
        [one["model"]["params"] for one in trees_of(each) if "params" in one["model"]]
        for each in (state, exact)
    )
    pairs = [
        (value.double(), other[name].double())
        for model, other in zip(ours, theirs, strict=True)
        for name, value in model.items()
    ]
    off = sum(float((a - b).square().sum()) for a, b in pairs)
    return (off / sum(float(b.square().sum()) for _, b in pairs)) ** 0.5


OPTIMIZERS = {
    "momentum": Sgd(0.05, 0.9, 1e-3),
    "nesterov": Sgd(0.05, 0.9, 1e-3, nesterov=True),
    "adam": Adam(0.003, weight_decay=1e-3),
    "adamw": AdamW(0.003, weight_decay=0.1),
}


@pytest.mark.parametrize("unit", ["round", "step"])
@pytest.mark.parametrize("clipping", [None, Clipping(0.5), Clipping(0.5, first=True)])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_captured_steps_follow_the_schedule_of_the_rate(optimizer, clipping, unit):
    """No executor is further from float64 than ten times the loop is; nothing is captured twice."""
    ends = {}
    for name, dtype in (("exact", torch.float64), ("loop", None), ("graph", None)):
        fed, state = federation(
            "graph" if name == "graph" else "loop",
            (FedProx(mu=0.1),),
            module=fixtures.make_network(),
            dtype=dtype or torch.float32,
        )
        how = {"optimizer": OPTIMIZERS[optimizer], "clipping": clipping}
        schedule = Schedule("exponential", unit, gamma=0.6)
        fed = replace(fed, training=replace(fed.training, **how, schedule=schedule))
        for round in range(ROUNDS):
            state, _ = run_round(state, fed)
            if name == "graph" and not round:
                cohort = fed.executor.cohorts[-1]
                steps = dict(cohort.steps)
        ends[name] = state
    assert fed.executor.cohorts == [cohort]
    assert steps
    assert all(cohort.steps[key] is step for key, step in steps.items())
    allowed = max(1e-6, 10 * distance(ends["loop"], ends["exact"]))
    assert distance(ends["graph"], ends["exact"]) < allowed


@pytest.mark.parametrize("keep_last", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_captured_steps_are_as_exact_as_a_loop_in_fp32(method, keep_last):
    """Over five rounds no executor is further from float64 than ten times the loop is.

    The executors add the same numbers in another order, so each has a rounding error of its own;
    1e-6 of the parameters' size is what float32 leaves even where the loop happens to be lucky.
    """
    settings = {"keep_last": keep_last, "participation": 0.75}
    exact = played("loop", METHODS[method], dtype=torch.float64, **settings)
    loop, stacked, graph = (
        distance(played(name, METHODS[method], **settings), exact)
        for name in ("loop", "stacked", "graph")
    )
    assert stacked <= 10 * loop + 1e-6
    assert graph <= 10 * loop + 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "pieces",
    [
        (BalancedSoftmax(),),
        (FedNTD(), FedFM(strength=1.0, start_round=0, warm_up=2, margin=0.1, calibration=0.5)),
    ],
    ids=["fedetf", "fedntd+fedfm"],
)
def test_heads_and_standardised_filters_are_the_same_in_every_executor(pieces, dtype):
    """A simplex head, weight-standardised convolutions, a loss that calls the head."""
    options: dict[str, Any] = {"norm": "group", "groups": 2, "standardise": 0.001}
    ends = {}
    for name in ("loop", "stacked", "graph"):
        module = fixtures.make_network(
            "cnn", channels=[4, 6], features=5, head="simplex", **options
        )
        ends[name] = played(name, pieces, module=module, dtype=dtype)
    allowed = 1e-4 if dtype is torch.float32 else 1e-9
    assert distance(ends["stacked"], ends["loop"]) < allowed
    assert distance(ends["graph"], ends["loop"]) < allowed


def test_stacked_and_captured_are_bitwise_the_same():
    stacked, graph = (played(name, METHODS["fedfm"]) for name in ("stacked", "graph"))
    assert same(stacked, graph)


def test_a_repeated_run_is_bitwise_the_same_in_bf16():
    once, again = (played("graph", METHODS["fedfm"], precision="bf16") for _ in range(2))
    assert same(once, again)


@pytest.mark.parametrize("name", ["cnn", "resnet18"])
def test_without_a_radius_the_second_pass_repeats_the_first(name):
    """To the last bit, in the precision and with the kernels of a real run."""
    ends = []
    for piece in (FedSAM(radius=0.0), FedAvg()):
        module = fixtures.make_network(name, shape=(3, 32, 32), norm="batch")
        settings = {"module": module, "shape": (3, 32, 32), "precision": "auto"}
        ends.append(played("graph", (piece,), 3, **settings))
    assert same(*ends)


def test_data_that_stay_on_the_host_train_the_same_model():
    resident, staged = (
        played("graph", METHODS["fedfm"], place=place, participation=0.75)
        for place in ("cuda", "cpu")
    )
    assert same(resident, staged)


def same(one, other) -> bool:
    ours, theirs = (trees.flatten(to_tree(state)) for state in (one, other))
    return all(torch.equal(value, theirs[name]) for name, value in ours.items())


def test_a_residual_network_takes_the_steps_of_the_loop():
    """Two small steps of a real ResNet, since rounding errors grow from step to step."""
    shape = (3, 32, 32)
    settings = {
        "shape": shape,
        "epochs": 1,
        "rounds": 1,
        "samples": fixtures.split_samples((16, 16, 16)),
    }
    runs = {}
    for name, dtype in (("loop", torch.float64), ("loop", torch.float32), ("graph", torch.float32)):
        module = fixtures.make_network("resnet18", shape=shape, width=16)
        runs[name, dtype] = played(name, (FedAvg(),), module=module, dtype=dtype, **settings)
    exact = runs["loop", torch.float64]
    loop, graph = (distance(runs[name, torch.float32], exact) for name in ("loop", "graph"))
    assert graph <= 10 * loop + 1e-6


def test_several_seeds_together_give_the_results_of_single_runs():
    alone, feds, states = [], [], []
    for seed in range(3):
        fed, state = federation("graph", METHODS["fedfm"], module=fixtures.make_network(seed=seed))
        fed = replace(fed, seed=seed)
        alone.append(run_round(state, fed)[0])
        feds.append(fed)
        states.append(state)
    shared = [replace(fed, executor=feds[0].executor) for fed in feds]
    together = [state for state, _ in run_without_divergence(states, shared)]
    assert all(distance(one, other) < 1e-6 for one, other in zip(together, alone, strict=True))


def test_a_network_that_cannot_be_stacked_runs_on_streams(caplog):
    def module() -> nn.Module:
        return adapted(nn.Linear(12, 6), lambda x: x * float(x.detach().std()))

    fed, _ = federation("graph", (FedAvg(),), shape=(12,), module=module())
    assert type(fed.executor) is StreamsExecutor
    assert "layer 'module'" in caplog.text
    exact = played("loop", (FedAvg(),), dtype=torch.float64, shape=(12,), module=module())
    loop, graph = (
        distance(played(name, (FedAvg(),), shape=(12,), module=module()), exact)
        for name in ("loop", "graph")
    )
    assert graph <= 10 * loop + 1e-6


@pytest.mark.parametrize(
    "name", ["vision transformer", "layer scale", "batch norm and slopes", "lstm", "transposed"]
)
def test_networks_of_every_kind_are_stacked_and_captured(name, caplog):
    """No network is further from float64 than ten times the loop is, and none is left out."""
    settings = {"shape": EVERY[name][1], "rounds": 2}
    exact = played("loop", (FedAvg(),), dtype=torch.float64, module=make(name), **settings)
    loop, graph = (
        distance(played(kind, (FedAvg(),), module=make(name), **settings), exact)
        for kind in ("loop", "graph")
    )
    assert graph <= 10 * loop + 1e-6
    assert "not trained as one network" not in caplog.text
    assert "not captured" not in caplog.text


@pytest.mark.parametrize("name", ["dropout", "vision transformer, dropout", "stochastic depth"])
def test_dropout_is_the_same_in_every_executor(name):
    settings = {"shape": EVERY[name][1], "rounds": 2}
    loop, stacked, graph, again = (
        played(kind, (FedAvg(),), module=make(name), **settings)
        for kind in ("loop", "stacked", "graph", "graph")
    )
    assert distance(stacked, loop) < 1e-4
    assert distance(graph, loop) < 1e-4
    assert same(graph, again)


def test_dropout_in_captured_steps_is_keyed_by_seed_round_and_client():
    layers = nn.Sequential(nn.Linear(12, 6), nn.Dropout(0.5))
    runs = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        runs.append(played("graph", (FedAvg(),), shape=(12,), module=adapted(layers)))
    assert same(*runs)


class Peeking(nn.Module):
    """Looks at its activations on the host, which no graph can do."""

    def forward(self, x):
        return x if float(x.detach().abs().max()) > 0 else -x


def test_a_network_that_cannot_be_captured_runs_uncaptured_and_says_so_once(caplog):
    def module() -> nn.Module:
        torch.manual_seed(0)
        return adapted(nn.Sequential(nn.Linear(12, 6), Peeking()))

    with caplog.at_level(logging.WARNING):
        found = played("graph", (FedAvg(),), shape=(12,), module=module())
    assert caplog.text.count("not captured") == 1
    expected = played("stacked", (FedAvg(),), shape=(12,), module=module())
    assert distance(found, expected) < 1e-5


def test_a_batch_of_another_shape_is_refused_after_capture():
    fed, state = federation("graph", (FedAvg(),))
    run_round(state, fed)
    assert isinstance(fed.executor, GraphExecutor)
    step = next(iter(fed.executor.cohorts[-1].steps.values()))
    assert isinstance(step, CapturedStep)
    with pytest.raises(ValueError, match=re.escape(str(tuple(step.indices.shape)))):
        step(step.indices[:, :1], None)


def memory_in_use() -> int:
    gc.collect()
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved()


def test_a_cohort_that_does_not_fit_is_split(caplog):
    shape, piece = (3, 32, 32), FedAvg()
    settings = {"shape": shape, "samples": fixtures.split_samples((4,) * 12), "epochs": 1}
    before = memory_in_use()
    torch.cuda.reset_peak_memory_stats()
    expected = played(
        "stacked", (piece,), 1, module=fixtures.make_network("resnet18", shape=shape), **settings
    )
    needed = torch.cuda.max_memory_reserved() - before
    fed, state = federation(
        "stacked", (piece,), module=fixtures.make_network("resnet18", shape=shape), **settings
    )
    enough = before + needed * 2 // 3
    torch.cuda.set_per_process_memory_fraction(enough / torch.cuda.mem_get_info()[1])
    try:
        found, _ = run_round(state, fed)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert "at a time from now on" in caplog.text
    assert "Tried to allocate" in caplog.text
    assert distance(found, expected) < 1e-5


def test_networks_with_group_norm_train_in_bf16():
    for name in ("cnn", "resnet18"):
        module = fixtures.make_network(name, shape=(3, 32, 32), norm="group", groups=8)
        state = played(
            "graph", METHODS["fedfm"], 2, module=module, shape=(3, 32, 32), precision="auto"
        )
        assert all(torch.isfinite(value).all() for value in state.model.params.values())
