"""Rounds of the library against the textbook: same models, buffers and anchors."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from fedfm.engine.executors import LoopExecutor
from fedfm.engine.networks import copy_model
from fedfm.methods import FedAvg, FedFM, FedFMLite, FedProx
from fedfm.rounds.round import run_round
from fedfm.verify import textbook, textbook_methods
from fedfm.verify.worlds import cohort_of
from tests import worlds

SGD: dict[str, Any] = {"lr": 0.05, "momentum": 0.9, "weight_decay": 1e-3}
NETWORKS: dict[str, dict[str, Any]] = {
    "cnn": {},
    "cnn with batch norm": {"norm": "batch"},
    "mlp with batch norm": {"norm": "batch"},
}
EXECUTORS = ("loop", "stacked")


def build(kind: str, dtype=torch.float64):
    return worlds.network(kind.split()[0], dtype=dtype, **NETWORKS[kind])


def anchors_of(state, piece: str) -> dict[int, torch.Tensor]:
    server = state.server[piece]
    return {c: a for c, a in enumerate(server["anchors"]) if server["seen"][c]}


def assert_anchors(ours, theirs, tolerance) -> None:
    assert ours.keys() == theirs.keys()
    for c, anchor in ours.items():
        torch.testing.assert_close(anchor, theirs[c], rtol=tolerance, atol=tolerance)


def assert_model(state, theirs, tolerance) -> None:
    worlds.close({**state.model.params, **state.model.buffers}, theirs, tolerance)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("keep_last", [False, True])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_fedavg_is_the_textbooks(executor, kind, keep_last, momentum):
    module, data = build(kind), worlds.images(dtype=torch.float64)
    fed = worlds.federation(
        module,
        data,
        FedAvg(),
        executor=executor,
        momentum=momentum,
        keep_last=keep_last,
        participation=0.75,
    )
    state, theirs = worlds.start(module, fed), module
    for t in range(3):
        cohort = cohort_of(fed, data, t)
        theirs, _ = textbook.fedavg_round(theirs, cohort, 0.05, momentum, 1e-3)
        state, _ = run_round(state, fed)
    assert_model(state, theirs, 1e-10)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("guide", ["cg", "l2"])
@pytest.mark.parametrize("aggregation", ["weighted", "uniform"])
def test_fedfm_is_the_textbooks(executor, kind, guide, aggregation):
    module, data = build(kind), worlds.images(dtype=torch.float64)
    piece = FedFM(strength=2.0, guide=guide, anchors=aggregation, start_round=1)
    fed = worlds.federation(module, data, piece, executor=executor, participation=0.5)
    state, theirs = worlds.start(module, fed), module
    anchors: textbook.Anchors = {}
    for t in range(5):
        theirs, anchors = textbook.fedfm_round(
            theirs,
            cohort_of(fed, data, t),
            anchors,
            strength=2.0,
            guide=guide,
            aggregation=aggregation,
            temperature=0.1,
            active=t >= 1,
            **SGD,
        )
        state, _ = run_round(state, fed)
        assert_anchors(anchors_of(state, "fedfm"), anchors, 1e-9)
    assert_model(state, theirs, 1e-9)


def lite_on_both_sides(piece: FedFMLite, *others: FedProx, kind="cnn", executor="stacked"):
    """A federation of FedFM-Lite, and the textbook's version of it."""
    module, data = build(kind), worlds.images(dtype=torch.float64)
    fed = worlds.federation(module, data, piece, *others, executor=executor, participation=0.75)
    method = textbook_methods.FedAvg(module, 4, **SGD)
    for prox in others:
        method = textbook_methods.FedProx(module, 4, mu=prox.mu, **SGD)
    theirs = textbook_methods.FedFMLite(
        method,
        strength=piece.strength,
        aggregation=piece.anchors,
        temperature=piece.temperature,
        every=piece.models_every,
        wait=piece.start_round,
    )
    return fed, worlds.start(module, fed), theirs


def assert_equal_rounds(fed, state, theirs, rounds, without=()):
    """The same models and anchors after every round; clients `without` fail in the library."""
    data = worlds.images(dtype=torch.float64)
    for t in range(rounds):
        cohort = cohort_of(fed, data, t)
        theirs.round([client for client in cohort if client["id"] not in without])
        state, log = run_round(state, fed)
        assert set(log.failed) == {client["id"] for client in cohort} & set(without)
        assert_model(state, theirs.model, 1e-9)
        assert_anchors(anchors_of(state, "fedfm-lite"), theirs.anchors, 1e-9)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("kind", ["cnn", "cnn with batch norm"])
@pytest.mark.parametrize("every", [1, 2, 3])
@pytest.mark.parametrize("aggregation", ["weighted", "uniform"])
def test_fedfm_lite_is_the_textbooks(executor, kind, every, aggregation):
    piece = FedFMLite(strength=2.0, start_round=0, models_every=every, anchors=aggregation)
    fed, state, theirs = lite_on_both_sides(piece, kind=kind, executor=executor)
    assert_equal_rounds(fed, state, theirs, 2 * every)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("every", [2, 3])
def test_between_exchanges_fedprox_pulls_towards_the_last_global_model(executor, every):
    piece = FedFMLite(strength=2.0, start_round=0, models_every=every)
    fed, state, theirs = lite_on_both_sides(piece, FedProx(mu=0.3), executor=executor)
    assert_equal_rounds(fed, state, theirs, 2 * every)


@pytest.mark.parametrize("start_round", [1, 2, 3])
def test_lite_takes_its_first_anchors_in_the_round_before_it_matches(start_round):
    piece = FedFMLite(strength=2.0, start_round=start_round)
    assert piece.first_round == start_round - 1
    fed, state, theirs = lite_on_both_sides(piece)
    assert_equal_rounds(fed, state, theirs, start_round + 2)


def test_uniform_anchors_leave_out_a_client_whose_training_fails():
    """A client that lacks a class counts with the last anchor, one that failed does not count."""
    fed, state, theirs = lite_on_both_sides(
        FedFMLite(strength=2.0, start_round=0, anchors="uniform")
    )
    broken = worlds.images(dtype=torch.float64)
    broken.train.inputs[fed.samples[1]] = torch.nan
    module = build("cnn")
    fed = replace(fed, executor=LoopExecutor(module, worlds.device_data(broken, module)))
    assert_equal_rounds(fed, state, theirs, 4, without=[1])


def test_float32_agrees_with_the_textbook_to_its_precision():
    module, data = build("cnn with batch norm", torch.float32), worlds.images()
    fed = worlds.federation(module, data, FedFM(strength=2.0, start_round=0))
    state, theirs = worlds.start(module, fed), module
    anchors: textbook.Anchors = {}
    for t in range(2):
        theirs, anchors = textbook.fedfm_round(
            theirs,
            cohort_of(fed, data, t),
            anchors,
            strength=2.0,
            guide="cg",
            aggregation="weighted",
            temperature=0.1,
            active=True,
            **SGD,
        )
        state, _ = run_round(state, fed)
    assert_model(state, theirs, 2e-4)


def test_a_client_that_missed_the_cycle_downloads_the_global_model():
    module, data = build("cnn"), worlds.images(dtype=torch.float64)
    fed = worlds.federation(
        module, data, FedFMLite(start_round=0, models_every=4), participation=0.5
    )
    state, parameters = worlds.start(module, fed), sum(p.numel() for p in module.parameters())
    taken: set[int] = set()
    anchors = 4 * fed.task.features
    for t in range(4):
        newcomers = set(fed.cohort(t)) - taken
        taken |= newcomers
        state, log = run_round(state, fed)
        assert log.traffic.floats_down == len(newcomers) * parameters + 2 * anchors
        assert log.traffic.floats_up == (2 * parameters if t == 3 else 0) + 2 * anchors
        assert set(state.clients) == (set() if t == 3 else taken)


def test_a_round_leaves_the_state_it_was_given_as_it_was():
    module, data = build("cnn with batch norm"), worlds.images(dtype=torch.float64)
    fed = worlds.federation(module, data, FedFMLite(start_round=0, models_every=2))
    state, _ = run_round(worlds.start(module, fed), fed)
    once, _ = run_round(state, fed)
    again, _ = run_round(state, fed)
    for name, value in once.model.params.items():
        assert torch.equal(value, again.model.params[name])
    before = copy_model(module)
    assert all(torch.equal(p, before.params[n]) for n, p in module.named_parameters())


@pytest.mark.parametrize("piece", [FedFM, FedFMLite])
def test_zero_strength_is_fedavg(piece):
    module, data = build("cnn with batch norm"), worlds.images(dtype=torch.float64)
    ends = []
    for method in (FedAvg(), piece(strength=0.0, start_round=0)):
        fed = worlds.federation(module, data, method)
        state = worlds.start(module, fed)
        for _ in range(3):
            state, _ = run_round(state, fed)
        ends.append(state.model)
    for name, value in ends[0].params.items():
        assert torch.equal(value, ends[1].params[name])


@pytest.mark.parametrize("piece", [FedFM, FedFMLite])
def test_before_its_start_round_matching_is_fedavg_and_sends_nothing_more(piece):
    module, data = build("cnn"), worlds.images(dtype=torch.float64)
    logs, ends = [], []
    for method in (FedAvg(), piece(start_round=3)):
        fed = worlds.federation(module, data, method)
        state = worlds.start(module, fed)
        for _ in range(2):
            state, log = run_round(state, fed)
        logs.append(log.traffic)
        ends.append(state.model.params)
    assert logs[0] == logs[1]
    assert all(torch.equal(value, ends[1][name]) for name, value in ends[0].items())


def test_renumbering_the_clients_changes_nothing(monkeypatch):
    module, data = build("cnn with batch norm"), worlds.images(dtype=torch.float64)
    piece = FedFM(strength=2.0, start_round=0)
    order = [2, 0, 3, 1]
    plain = worlds.federation(module, data, piece)
    moved = worlds.federation(module, data, piece, clients=[plain.samples[k] for k in order])
    same_plan = type(moved).plan
    ends = []
    for fed in (plain, moved):
        state = worlds.start(module, fed)
        if fed is moved:
            monkeypatch.setattr(
                type(moved), "plan", lambda self, t, k: same_plan(plain, t, order[k])
            )
        for _ in range(3):
            state, _ = run_round(state, fed)
        ends.append(state.model.params)
    for name, value in ends[0].items():
        torch.testing.assert_close(value, ends[1][name], rtol=1e-10, atol=1e-10)
