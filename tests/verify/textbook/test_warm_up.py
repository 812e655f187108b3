"""The strength of matching over the first rounds, with its numbers written out."""

from typing import Any

import pytest

from fedfm.verify.checks import Mismatch
from fedfm.verify.textbook.fedfm import FedFM, FedFMLite
from fedfm.verify.textbook.loop import FedAvg
from tests.verify.points import agree, cohort, in_world, play

KINDS = pytest.mark.parametrize("kind", [FedFM, FedFMLite])


def matched(kind: Any, **settings: Any) -> Any:
    """FedAvg with feature matching."""
    how = {"guide": "cg", "aggregation": "weighted", "temperature": 0.5}
    return kind(method=in_world(FedAvg), **how, **settings)


@KINDS
def test_strength_rises_linearly_from_the_start_round_on(kind):
    """Of strength 2 over four rounds, after one round without matching."""
    warm = matched(kind, strength=2.0, warm_up=4, wait=1)
    by_hand = matched(kind, strength=0.0, wait=1)
    for t, strength in enumerate([0.0, 0.5, 1.0, 1.5, 2.0, 2.0]):
        by_hand.strength = strength
        for method in (warm, by_hand):
            method.round(cohort(t))
        agree(warm, by_hand)


@KINDS
@pytest.mark.parametrize("warm_up", [0, 1])
def test_without_warm_up_it_is_plain_matching(kind, warm_up):
    plain = play(matched(kind, strength=2.0))
    agree(play(matched(kind, strength=2.0, warm_up=warm_up)), plain)
    with pytest.raises(Mismatch):
        agree(play(matched(kind, strength=2.0, warm_up=9)), plain, 1e-4)
