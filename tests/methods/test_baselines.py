"""Every baseline, and every composition with feature matching, against the textbook.

The conformance suite compares registered methods in further federations, all of them stacked.
"""

import pytest

from fedfm.methods import (
    Centralised,
    Ditto,
    FedAvg,
    FedAvgM,
    FedBN,
    FedDyn,
    FedFM,
    FedNova,
    FedPer,
    FedProto,
    FedProx,
    FedRep,
    Local,
    Moon,
    Piece,
    Scaffold,
)
from fedfm.verify.compare_textbook import agree
from fedfm.verify.fixtures import SmallFederation

METHODS: dict[str, tuple[Piece, ...]] = {
    "fedavg": (FedAvg(),),
    "fedavgm": (FedAvgM(beta=0.7),),
    "fedprox": (FedProx(mu=0.3),),
    "scaffold": (Scaffold(),),
    "feddyn": (FedDyn(alpha=0.2),),
    "fednova": (FedNova(),),
    "fednova+fedprox": (FedNova(), FedProx(mu=0.3)),
    "moon": (Moon(mu=2.0, tau=0.5),),
    "fedproto": (FedProto(strength=0.5),),
    "fedbn": (FedBN(),),
    "fedper": (FedPer(),),
    "fedrep": (FedRep(head_epochs=3),),
    "ditto": (Ditto(strength=0.5),),
    "local": (Local(),),
    "centralised": (Centralised(),),
}
COMPOSED = [name for name in METHODS if name != "fedproto"]
NORMED = "tiny cnn with batch norm"


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_the_textbooks_in_a_loop(name):
    agree(SmallFederation(NORMED, executor="loop", lr=0.05), METHODS[name])


@pytest.mark.parametrize("name", COMPOSED)
def test_every_composition_with_matching_is_the_textbooks(name):
    """With batch norm, the conformance suite compares those of two."""
    matching = FedFM(strength=1.0, start_round=0)
    agree(SmallFederation("tiny cnn", lr=0.05), (*METHODS[name], matching))


def test_a_composition_of_three_is_the_textbooks_with_batch_norm():
    matching = FedFM(strength=1.0, start_round=0)
    agree(SmallFederation(NORMED, lr=0.05), (*METHODS["fednova+fedprox"], matching))
