"""Rounds of the library against the textbook: same models, buffers and anchors."""

from dataclasses import replace

import pytest
import torch

from fedfm.methods import FedAvg, FedFM, FedFMLite, FedProx
from fedfm.rounds.round import run_round
from fedfm.verify import CHECKS, fixtures
from fedfm.verify.compare_textbook import agree
from fedfm.verify.fixtures import SmallFederation
from tests.pairs import pairwise

NETWORKS = ("tiny cnn", "tiny cnn with batch norm", "tiny mlp with batch norm")
EXECUTORS = ("loop", "stacked")


@pytest.mark.parametrize(
    ("executor", "network", "keep_last", "momentum"),
    pairwise(EXECUTORS, NETWORKS, [False, True], [0.0, 0.9]),
)
def test_fedavg_is_the_textbooks(executor, network, keep_last, momentum):
    small = SmallFederation(
        network, executor=executor, lr=0.05, keep_last=keep_last, momentum=momentum
    )
    agree(replace(small, sizes=fixtures.SIZES, batch_size=8), (FedAvg(),))  # no batch of one


@pytest.mark.parametrize(
    ("executor", "network", "guide", "aggregation"),
    pairwise(EXECUTORS, NETWORKS, ["cg", "l2"], ["weighted", "uniform"]),
)
def test_fedfm_is_the_textbooks(executor, network, guide, aggregation):
    piece = FedFM(strength=2.0, guide=guide, anchors=aggregation, start_round=1)
    agree(SmallFederation(network, executor=executor, lr=0.05, participation=0.5), (piece,))


@pytest.mark.parametrize(
    ("executor", "network", "every", "aggregation"),
    pairwise(EXECUTORS, NETWORKS[:2], [1, 2, 3], ["weighted", "uniform"]),
)
def test_fedfm_lite_is_the_textbooks(executor, network, every, aggregation):
    piece = FedFMLite(strength=2.0, start_round=0, models_every=every, anchors=aggregation)
    agree(SmallFederation(network, executor=executor, lr=0.05), (piece,))


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("every", [2, 3])
def test_between_exchanges_fedprox_pulls_towards_the_last_global_model(executor, every):
    lite = FedFMLite(strength=2.0, start_round=0, models_every=every)
    agree(SmallFederation("tiny cnn", executor=executor, lr=0.05), (FedProx(mu=0.3), lite))


@pytest.mark.parametrize("start_round", [1, 2, 3])
def test_lite_takes_its_first_anchors_in_the_round_before_it_matches(start_round):
    piece = FedFMLite(strength=2.0, start_round=start_round)
    assert piece.first_round == start_round - 1
    agree(SmallFederation("tiny cnn", lr=0.05), (piece,))


@pytest.mark.parametrize("executor", EXECUTORS)
def test_uniform_anchors_leave_out_a_client_whose_training_fails(executor):
    """A client that lacks a class counts with the last anchor, one that failed does not count."""
    piece = FedFMLite(strength=2.0, start_round=0, anchors="uniform")
    agree(SmallFederation("tiny cnn", executor=executor, lr=0.05, broken=1), (piece,))


def test_float32_agrees_with_the_textbook_to_its_precision():
    small = SmallFederation("tiny cnn with batch norm", dtype=torch.float32)
    agree(small, (FedFM(strength=2.0, start_round=0),))


@pytest.mark.parametrize("piece", [FedFM(start_round=3), FedFMLite(start_round=3)])
@pytest.mark.parametrize("name", ["pure", "zero strength", "asleep", "renumbering"])
def test_rounds_of_matching_have_the_properties_of_every_method(piece, name):
    assert CHECKS[name].applies((piece,))
    CHECKS[name].run((piece,))


def test_a_round_is_pure_between_exchanges_of_models():
    CHECKS["pure"].run((FedFMLite(start_round=0, models_every=2),))


def test_a_client_that_missed_the_cycle_downloads_the_global_model():
    module, data = (
        fixtures.make_network(dtype=torch.float64),
        fixtures.make_images(dtype=torch.float64),
    )
    lite = FedFMLite(start_round=0, models_every=4)
    fed = fixtures.make_federation(module, data, lite, participation=0.5)
    state, parameters = fixtures.start(fed), sum(p.numel() for p in module.parameters())
    taken: set[int] = set()
    anchors = fixtures.CLASSES * fed.task.features
    for t in range(4):
        newcomers = set(fed.cohort(t)) - taken
        taken |= newcomers
        state, log = run_round(state, fed)
        assert log.traffic.floats_down == len(newcomers) * parameters + 2 * anchors
        assert log.traffic.floats_up == (2 * parameters if t == 3 else 0) + 2 * anchors
        assert set(state.clients) == (set() if t == 3 else taken)
