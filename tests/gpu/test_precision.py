"""Low precision with everything else that a run can have: every path knows what it computes in."""

import gc
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedfm import Training, data, models, simulate
from fedfm.cli.run import run_and_show
from fedfm.config import load_config
from fedfm.core import trees
from fedfm.data.augment import PAPERS
from fedfm.engine import graphs
from fedfm.engine.choice import use_precision
from fedfm.engine.graphs import GraphCohort, GraphExecutor
from fedfm.engine.profile import Profile
from fedfm.engine.streams import StreamsExecutor
from fedfm.features.feature_space import load_features
from fedfm.methods import FedAdagrad, FedAvg, FedFM, FedFMLite, FedProto, Moon, Piece, Scaffold
from fedfm.methods.base import Batch
from fedfm.privacy.config import Privacy
from fedfm.privacy.privacy_mechanism import PrivacyMechanism, keyed_sources
from fedfm.rounds.round import run_round
from fedfm.verify import fixtures
from tests.engine.test_executors import adapted
from tests.engine.test_graphs import METHODS
from tests.gpu.test_executors import distance, federation, memory_in_use, played, same
from tests.gpu.test_runs import assert_goes_on
from tests.rounds.together import run_without_divergence

NEAR = 0.1
"""How far bf16 may be from fp32 after two rounds of so small a network."""
LITE = METHODS["fedfm-lite every 2"]


@pytest.fixture(autouse=True)
def everything_captured(monkeypatch):
    monkeypatch.setattr(graphs, "MIN_STEPS", 1)


@pytest.fixture(autouse=True)
def flags_as_they_were():
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    yield
    matmul.allow_tf32, cudnn.allow_tf32 = before


def unstackable() -> nn.Module:
    """A network that no executor stacks, since it writes into a tensor of its own; no branches."""
    torch.manual_seed(0)

    def copied(x):
        return torch.zeros(x.shape, device=x.device, dtype=x.dtype).add_(x)

    return adapted(nn.Sequential(nn.Linear(12, 6), nn.PReLU()), copied)


# Adagrad's first step is the change's sign where it exceeds tau: rounding of small changes decides
STEADY = METHODS | {"fedadagrad": (FedAdagrad(tau=0.1),)}


def near_fp32(name, pieces, precision="bf16", make=lambda: None, **settings) -> float:
    """How far two rounds in a precision are from the same ones in fp32."""

    def after(precision):
        torch.manual_seed(0)
        return played(name, pieces, 2, precision=precision, module=make(), **settings)

    exact, low = after("fp32"), after(precision)
    assert all(torch.isfinite(value).all() for value in low.model.params.values())
    return distance(low, exact)


# --- Executors, data on the host, seeds, some of the clients --------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains_in_bf16(method):
    """Also where clients' own models are measured, as FedFM-Lite and FedProto do."""
    assert 0 < near_fp32("graph", STEADY[method]) < NEAR


@pytest.mark.parametrize("method", ["fedfm", "scaffold", "moon", "fedfm-lite every 2"])
@pytest.mark.parametrize("name", ["loop", "stacked"])
def test_executors_without_graphs_train_in_bf16(name, method):
    settings = {"participation": 0.75, "keep_last": True}
    assert 0 < near_fp32(name, METHODS[method], **settings) < NEAR


@pytest.mark.parametrize("method", ["fedfm", "moon", "fedfm-lite every 2"])
def test_stacked_and_captured_are_bitwise_the_same_in_bf16(method):
    stacked, graph = (
        played(name, METHODS[method], 3, precision="bf16", participation=0.75)
        for name in ("stacked", "graph")
    )
    assert same(stacked, graph)


@pytest.mark.parametrize("method", ["fedfm", "moon", "fedfm-lite every 2"])
def test_data_that_stay_on_the_host_train_the_same_model_in_bf16(method):
    resident, staged = (
        played("graph", METHODS[method], 4, precision="bf16", place=place, participation=0.75)
        for place in ("cuda", "cpu")
    )
    assert same(resident, staged)


@pytest.mark.parametrize("method", ["fedfm", "moon", "scaffold", "fedfm-lite every 2"])
def test_several_seeds_together_train_in_bf16_as_they_do_alone(method):
    """Also where a model that one seed's clients share becomes one for every client."""
    feds, states, alone = [], [], []
    for seed in range(3):
        fed, state = federation(
            "graph", METHODS[method], module=fixtures.make_network(seed=seed), precision="bf16"
        )
        feds.append(replace(fed, seed=seed))
        states.append(state)
        for _ in range(2):
            state, _ = run_round(state, feds[-1])
        alone.append(state)
    shared = [replace(fed, executor=feds[0].executor) for fed in feds]
    for _ in range(2):
        states = [state for state, _ in run_without_divergence(states, shared)]
    assert all(distance(one, other) < NEAR for one, other in zip(states, alone, strict=True))


def test_augmented_batches_are_captured_in_bf16():
    runs = []
    for name in ("stacked", "graph"):
        module = fixtures.make_network(shape=(3, 8, 8), norm="batch")
        fed, state = federation(
            name, METHODS["fedfm"], module=module, shape=(3, 8, 8), precision="bf16"
        )
        for _ in range(2):
            state, _ = run_round(state, replace(fed, augmentation=PAPERS))
        runs.append(state)
    assert same(*runs)


def test_a_network_that_cannot_be_stacked_runs_on_streams_in_bf16():
    settings = {"shape": (12,), "participation": 0.75}
    module = unstackable()
    fed, _ = federation("graph", METHODS["moon"], module=module, precision="bf16", **settings)
    assert type(fed.executor) is StreamsExecutor
    for method in ("moon", "fedfm-lite every 2"):
        assert 0 < near_fp32("graph", METHODS[method], make=unstackable, **settings) < NEAR


def test_private_answers_are_made_on_a_gpu_in_bf16():
    fed, state = federation("graph", METHODS["fedfm"], precision="bf16")
    mechanism = PrivacyMechanism(Privacy(noise=0.01, anchor_noise=0.01), 2, keyed_sources(7))
    for _ in range(2):
        state, log = run_round(state, replace(fed, privacy=mechanism))
        assert log.failed == []


# --- Networks -------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fedfm", "moon", "fedfm-lite every 2"])
@pytest.mark.parametrize("frozen", ["body.0", "body.1", "body.9"])
def test_networks_with_frozen_layers_train_in_bf16(frozen, method):
    """A convolution, a batch norm, a linear layer: frozen weights travel with the buffers."""

    def make() -> nn.Module:
        module = fixtures.make_network(norm="batch")
        module.get_submodule(frozen).requires_grad_(False)
        return module

    assert 0 < near_fp32("graph", METHODS[method], make=make) < NEAR


class Ramp(nn.Module):
    """Adds numbers that it makes itself, in float32 whatever its input is."""

    def forward(self, x):
        ramp = torch.linspace(0, 1, x.shape[-1], device=x.device)
        return x + ramp.to(x.dtype if x.dtype == torch.float64 else torch.float32)


def test_a_network_that_goes_on_in_float32_trains_in_bf16():
    def make() -> nn.Module:
        return adapted(nn.Sequential(nn.Linear(12, 6), Ramp(), nn.Linear(6, 6)))

    assert 0 < near_fp32("graph", (FedAvg(),), make=make, shape=(12,)) < NEAR


def test_layers_without_kernels_of_their_own_train_in_bf16():
    def make() -> nn.Module:
        body = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1),
            nn.BatchNorm2d(4, affine=False),
            nn.Conv2d(4, 4, 3, padding=1, groups=2),
            nn.ReLU(),
            nn.Conv2d(4, 4, 3, dilation=2),
            nn.GroupNorm(2, 4),
            nn.LayerNorm((4, 4)),
            nn.Flatten(),
            nn.Linear(64, 8),
        )
        return models.BodyAndHead(body, nn.Linear(8, fixtures.CLASSES))

    for pieces in (METHODS["moon"], METHODS["fedproto"]):
        assert 0 < near_fp32("graph", pieces, make=make) < NEAR


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_large_pooling_windows_are_pooled_on_a_gpu(precision):
    def make() -> nn.Module:
        torch.manual_seed(0)
        body = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(16))
        return models.BodyAndHead(body, nn.Linear(8, fixtures.CLASSES))

    loop, graph = (
        played(name, (FedAvg(),), 1, module=make(), shape=(1, 16, 16), precision=precision)
        for name in ("loop", "graph")
    )
    assert distance(graph, loop) < (1e-4 if precision == "fp32" else NEAR)


@pytest.mark.parametrize("precision", ["auto", "fp32"])
def test_a_network_in_float64_is_trained_in_float64(precision):
    loop, graph = (
        played(name, METHODS["fedfm"], 2, dtype=torch.float64, precision=each)
        for name, each in (("loop", "fp32"), ("graph", precision))
    )
    assert distance(graph, loop) < 1e-9


# --- tf32 -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains_in_tf32(method):
    """Centralised takes the steps of all clients one after another, so its rounding adds up."""
    near = NEAR if method == "centralised" else NEAR / 4
    assert 0 < near_fp32("graph", STEADY[method], "tf32") < near


def relative(found, exact) -> float:
    return float((found.double() - exact).norm() / exact.norm())


def test_averages_and_statistics_are_fp32_in_tf32():
    use_precision("tf32", torch.device("cuda"))
    rng = torch.Generator("cuda").manual_seed(0)
    changes = torch.randn(10, 512, 512, generator=rng, device="cuda")
    weights = torch.tensor([4001.0 + 7 * i for i in range(10)], device="cuda")
    exact = trees.weighted_sum(weights.double(), changes.double())
    assert relative(trees.weighted_sum(weights, changes), exact) < 1e-6
    product = changes[0].double() @ changes[1].double()
    assert relative(changes[0] @ changes[1], product) > 1e-5, "what networks get"

    def statistic(batch: Batch) -> trees.Tree:
        off = relative(changes[0] @ changes[1], product)
        return {"off": torch.full((len(batch.labels),), off)}

    fed, state = federation("graph", METHODS["fedfm"], precision="tf32")
    found = fed.executor.measure(state.model.map(trees.share), fed.samples, statistic)
    assert found["off"].max() < 1e-6


def test_features_of_a_run_do_not_depend_on_what_ran_before(tmp_path):
    config = load_config("digits", ["training.rounds=1", "training.epochs=1", "device=cuda"])
    run_and_show([config], [tmp_path / "run"], resume=False)
    found = []
    for allowed in (False, True):
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = allowed
        found.append(load_features(tmp_path / "run", data.load("digits"))[0])
    assert np.array_equal(found[0], found[1])


# --- Memory, profiles, other devices, checkpoints, real clients -----------------------------------


def test_a_cohort_that_was_captured_gives_its_memory_back(caplog):
    """Where a second one does not fit beside it: split once, and not for what is gone already."""
    shape, everything = (3, 32, 32), torch.arange(sum(fixtures.SIZES))
    module = fixtures.make_network(shape=shape, channels=[128, 128])
    fed, state = federation(
        "graph",
        (FedAvg(),),
        module=module,
        shape=shape,
        samples=[everything] * 6,
        batch_size=len(everything),
        precision="bf16",
    )
    memory_in_use()
    torch.cuda.reset_peak_memory_stats()
    run_round(state, fed)
    most = torch.cuda.max_memory_reserved()
    training = replace(fed.training, optimizer=replace(fed.training.optimizer, lr=0.01))
    gc.disable()  # whether anything is freed must not depend on when Python looks for cycles
    torch.cuda.set_per_process_memory_fraction(most / torch.cuda.mem_get_info()[1])
    try:
        run_round(state, replace(fed, training=training))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
        gc.enable()
    assert caplog.text.count("at a time from now on") == 1


def test_networks_on_streams_take_fewer_where_memory_is_short(monkeypatch, caplog):
    expected = played("graph", (FedAvg(),), 2, module=unstackable(), shape=(12,))
    fed, state = federation("graph", (FedAvg(),), module=unstackable(), shape=(12,))
    assert isinstance(fed.executor, StreamsExecutor)
    works, executor = GraphCohort.retrain, fed.executor

    def retrain(cohort, *arguments):
        if len(executor.streams) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory. GPU 0 is full")
        return works(cohort, *arguments)

    monkeypatch.setattr(GraphCohort, "retrain", retrain)
    for _ in range(2):
        state, _ = run_round(state, fed)
    assert "4 clients side by side needs more memory" in caplog.text
    assert len(executor.streams) == 2
    assert same(state, expected)


def test_a_profile_does_not_keep_steps_from_being_captured(caplog):
    fed, state = federation("graph", METHODS["fedfm"], precision="bf16")
    with Profile() as profile:
        for _ in range(2):
            state, _ = run_round(state, fed)
    assert "not captured" not in caplog.text
    assert isinstance(fed.executor, GraphExecutor)
    assert fed.executor.cohorts[-1].steps
    assert profile.seconds["captured steps"] > 0
    assert same(state, played("graph", METHODS["fedfm"], 2, precision="bf16"))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there is one GPU only")
def test_a_model_on_the_second_gpu_is_trained_there():
    found = []
    for device in ("cuda:0", "cuda:1"):
        torch.manual_seed(0)
        network = models.build("cnn", shape=(1, 8, 8), classes=10, norm="batch").to(device)
        training = Training(clients=4, rounds=2, epochs=1, batch_size=16)
        found.append(
            simulate(network, data.load("digits"), FedFM(start_round=1), training=training)
        )
    first, second = (result.best.model.params for result in found)
    assert all(torch.equal(value, second[name].to(value.device)) for name, value in first.items())


@pytest.mark.parametrize("states", ["memory", "disk"])
@pytest.mark.parametrize("piece", [Moon(), Scaffold(), *LITE], ids=lambda piece: piece.name)
def test_what_clients_keep_goes_on_bit_for_bit_in_bf16(tmp_path, piece: Piece, states):
    def run(out, **options):
        torch.manual_seed(0)
        return simulate(
            models.build("cnn", shape=(1, 8, 8), classes=10, norm="batch").to("cuda"),
            data.load("digits"),
            piece,
            training=Training(clients=6, rounds=4, epochs=1, batch_size=16, participation=0.5),
            client_states=states,
            precision="bf16",
            out=tmp_path / out,
            **options,
        )

    assert_goes_on(run)


@pytest.mark.parametrize(
    "piece",
    [FedAvg(), FedFM(), FedFMLite(), FedProto(), Moon(), Scaffold()],
    ids=lambda piece: piece.name,
)
def test_real_clients_train_on_gpus(tmp_path, piece: Piece):
    """In bf16, and to the model that they come to on a CPU: what the server sends gets there."""
    assert federated(tmp_path / "gpu", piece.name, "cuda") == pytest.approx(
        federated(tmp_path / "cpu", piece.name, "cpu"), rel=NEAR
    )


def federated(folder, method: str, device: str) -> list[float]:
    """The losses of a federation of three clients, none of which failed."""
    pytest.importorskip("flwr")
    from tests.deploy.conftest import FEATURE_MATCHING, SETTINGS, Federation, write_site

    for k in range(3):
        share = {"source": '"share"', "share": k, "of": 3}
        write_site(folder / f"c{k}", f"c{k}", share, device=f'"{device}"')
    given = ["data.name=digits", "training.clients=3", f"method=['{method}']"]
    gentle = FEATURE_MATCHING if method.startswith("fedfm") else ()
    config = load_config("digits", [*SETTINGS, *given, *(f"{method}.{each}" for each in gentle)])
    rounds = Federation(folder, config).run().rounds
    assert [each.failed for each in rounds] == [0, 0, 0]
    return [each.train_loss or 0.0 for each in rounds]
