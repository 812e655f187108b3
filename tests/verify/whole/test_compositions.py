"""The suite for pieces with feature matching, with options, and with their defaults."""

from typing import Any

import pytest

from fedfm.methods import (
    CCVR,
    PIECES,
    BalancedSoftmax,
    FedDecorr,
    FedFM,
    FedFMLite,
    FedLC,
    FedNTD,
    FedRS,
    FedUV,
    Moon,
    Piece,
)
from fedfm.verify import verify

MATCHING = FedFM(strength=1.0, start_round=1)
COMPOSITIONS: list[tuple[Piece, ...]] = [
    *((piece, MATCHING) for piece in (FedLC(), FedLC(exclude_true=False), FedRS())),
    *((piece, MATCHING) for piece in (BalancedSoftmax(), FedDecorr(), FedUV())),
    *((FedNTD(strength=0.5, temperature=2.0), other) for other in (MATCHING, Moon(mu=0.5))),
    (MATCHING, CCVR()),
]
OPTIONS: list[dict[str, Any]] = [
    {"warm_up": 3},
    {"moving_average": 0.9, "anchors": "uniform"},
    {"margin": 0.2},
    {"calibration": 0.5},
]


@pytest.mark.parametrize("pieces", COMPOSITIONS, ids=lambda pieces: "+".join(map(repr, pieces)))
def test_compositions_pass(pieces):
    report = verify(pieces)
    assert report.passed, report


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("kind", [FedFM, FedFMLite])
def test_options_of_matching_pass(kind, options):
    report = verify(kind(strength=1.0, start_round=1, **options))
    assert report.passed, report


@pytest.mark.parametrize("name", ["feddyn", "fedfm-lite"])
def test_the_defaults_pass_as_well_as_the_settings_of_the_suite(name):
    report = verify(PIECES[name]())
    assert report.passed, report
