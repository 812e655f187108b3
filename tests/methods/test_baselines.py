"""Every baseline, and every composition with feature matching, against the textbook."""

from typing import Any

import pytest
import torch

from fedfm.methods import (
    FedAvg,
    FedAvgM,
    FedDyn,
    FedFM,
    FedNova,
    FedProto,
    FedProx,
    Moon,
    Piece,
    Scaffold,
)
from fedfm.rounds.round import run_round
from fedfm.verify import textbook, textbook_methods
from fedfm.verify.worlds import cohort_of
from tests import worlds

METHODS: dict[str, tuple[list[Piece], Any, dict[str, Any]]] = {
    "fedavg": ([FedAvg()], textbook_methods.FedAvg, {}),
    "fedavgm": ([FedAvgM(beta=0.7)], textbook_methods.FedAvgM, {"beta": 0.7}),
    "fedprox": ([FedProx(mu=0.3)], textbook_methods.FedProx, {"mu": 0.3}),
    "scaffold": ([Scaffold()], textbook_methods.Scaffold, {}),
    "feddyn": ([FedDyn(alpha=0.2)], textbook_methods.FedDyn, {"alpha": 0.2}),
    "fednova": ([FedNova()], textbook_methods.FedNova, {}),
    "fednova+fedprox": (
        [FedNova(), FedProx(mu=0.3)], textbook_methods.FedNova, {"mu": 0.3},
    ),
    "moon": ([Moon(mu=2.0, tau=0.5)], textbook_methods.Moon, {"mu": 2.0, "tau": 0.5}),
    "fedproto": ([FedProto(strength=0.5)], textbook_methods.FedProto, {"strength": 0.5}),
}  # fmt: skip
COMPOSED = [name for name in METHODS if name != "fedproto"]


def compare(name, kind, momentum, weight_decay=1e-3, executor="stacked", extra=(), rounds=4):
    pieces, oracle, hyper = METHODS[name]
    module = worlds.network(dtype=torch.float64, **kind)
    data = worlds.images(dtype=torch.float64)
    fed = worlds.federation(
        module, data, *pieces, *extra, executor=executor, participation=0.75, momentum=momentum,
        weight_decay=weight_decay,
    )  # fmt: skip
    state = worlds.start(module, fed)
    theirs = oracle(
        module, len(fed.samples), lr=0.05, momentum=momentum, weight_decay=weight_decay, **hyper
    )
    anchors: textbook.Anchors = {}
    for t in range(rounds):
        cohort = cohort_of(fed, data, t)
        if extra:
            anchors = textbook_methods.matching_round(
                theirs, cohort, anchors, strength=1.0, temperature=0.1
            )
        else:
            theirs.round(cohort)
        state, _ = run_round(state, fed)
        worlds.close({**state.model.params, **state.model.buffers}, theirs.model, 1e-9)


@pytest.mark.parametrize("executor", ["loop", "stacked"])
@pytest.mark.parametrize("kind", [{}, {"norm": "batch"}], ids=["plain", "batch norm"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_the_textbooks(name, kind, momentum, executor):
    compare(name, kind, momentum, executor=executor)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_the_textbooks_without_weight_decay(name):
    compare(name, {}, 0.5, weight_decay=0.0)


@pytest.mark.parametrize("kind", [{}, {"norm": "batch"}], ids=["plain", "batch norm"])
@pytest.mark.parametrize("name", COMPOSED)
def test_every_composition_with_matching_is_the_textbooks(name, kind):
    compare(name, kind, 0.9, extra=(FedFM(strength=1.0, start_round=0),))
