"""Who leads under a budget, and how sure that is."""

import numpy as np
import pytest

from fedfm.grid.store import Rounds
from fedfm.paper.comparison.budgets import KINDS, SHARES, count_rounds, judge_budget, judge_budgets
from fedfm.paper.comparison.rows import MethodRow
from fedfm.paper.comparison.sections import HELPS, HURTS, UNDECIDED, judge_gain
from fedfm.report.tables.statistics import get_table_metric
from fedfm.report.tables.table import Entry
from tests.grid.results import CONFIG, record, result

ROUNDS = next(kind for kind in KINDS if kind.attribute == "rounds")
BYTES = next(kind for kind in KINDS if kind.attribute == "gigabytes")
PASSES = next(kind for kind in KINDS if kind.attribute == "passes")


def run(*accuracies: float, traffic: int = 1) -> Rounds:
    """Rounds with these accuracies in percent, on validation and test samples."""
    return [
        record(n, accuracy / 100) | {"bytes_up": traffic * 10**9, "bytes_down": 0}
        for n, accuracy in enumerate(accuracies, 1)
    ]


def row(name: str, *runs: Rounds, method: str = "fedavg") -> MethodRow:
    config = CONFIG | {"method": {method: {}}}
    summaries = tuple(result({"method": name}, s, 0.0, config=config) for s in range(len(runs)))
    measure = get_table_metric("test_accuracy")
    return MethodRow(name, {measure.name: Entry({"method": name}, measure, summaries)}, runs)


def test_a_curve_has_the_round_that_validation_chooses_and_what_was_spent():
    both = [run(10, 30, 20, traffic=2), run(20, 30, 40, traffic=4)]
    curve = row("FedSAM", *both, method="fedsam").curve
    assert curve.reached.tolist() == pytest.approx([15, 30, 35])
    assert curve.spread[0] == pytest.approx(np.std([10, 20], ddof=1))
    assert curve.gigabytes.tolist() == pytest.approx([3, 6, 9])
    assert curve.passes.tolist() == pytest.approx([2.1, 4.2, 6.3])
    assert curve.rounds.tolist() == [1, 2, 3]


def test_a_later_round_with_worse_validation_does_not_count():
    rounds = run(10, 30, 20)
    rounds[2]["test_accuracy"] = 0.9
    assert row("FedAvg", rounds).curve.reached.tolist() == pytest.approx([10, 30, 30])


@pytest.mark.parametrize(("budget", "rounds"), [(0.5, 0), (1, 1), (2.9, 2), (3, 3), (99, 3)])
def test_rounds_that_fit_into_a_budget(budget, rounds):
    assert count_rounds(np.array([1.0, 2.0, 3.0]), budget) == rounds


def test_a_costly_method_leads_in_rounds_and_not_in_compute_or_traffic():
    cheap = row("FedAvg", run(10, 20, 30, 40))
    costly = row("FedSAM", run(15, 30, 45, 60, traffic=3), method="fedsam")
    assert judge_budget([cheap, costly], ROUNDS, 1, 4).leader.method == "FedSAM"
    assert judge_budget([cheap, costly], BYTES, 1, 4).leader.method == "FedAvg"
    assert judge_budget([cheap, costly], PASSES, 1, 4).leader.method == "FedAvg"
    ranking = judge_budget([cheap, costly], PASSES, 1, 2)
    assert [each.method for each in ranking.standings] == ["FedAvg"], "no round of the other fits"


def test_every_kind_of_budget_is_a_share_of_fedavgs():
    rows = [row("FedAvg", run(*range(10, 50, 2)))]
    rankings = list(judge_budgets(rows))
    assert len(rankings) == len(KINDS) * len(SHARES)
    assert {v.budget for v in rankings if v.kind == ROUNDS} == {2, 5, 20}
    assert list(judge_budgets([row("FedSAM", run(1, 2))])) == []


def test_methods_are_told_apart_by_two_standard_errors_of_the_pooled_deviation():
    several = row("FedAvg", run(50), run(52), run(54))  # deviation 2
    near, far = row("FedNTD", run(48)), row("FedLC", run(47))
    ranking = judge_budget([several, near, far], ROUNDS, 1, 1)
    assert ranking.deviation == pytest.approx(2)
    assert [each.method for each in ranking.rivals] == ["FedNTD"]  # 4 < 4.6 < 5
    alone = judge_budget([row("FedAvg", run(50)), row("FedLC", run(10))], ROUNDS, 1, 1)
    assert alone.deviation is None
    assert [each.method for each in alone.rivals] == ["FedLC"]


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        ((60.0, 61.0), (10.5, HELPS, 2)),
        ((49.0, 51.0), (0.0, UNDECIDED, 2)),
        ((30.0, 31.0), (-19.5, HURTS, 2)),
        ((60.0,), (10.0, UNDECIDED, 1)),
        ((), (None, "", 0)),
    ],
)
def test_a_gain_must_be_larger_than_the_deviation(after, expected):
    before = {0: 50.0, 1: 50.0, 2: 0.0}
    gain, verdict, seeds = judge_gain(before, dict(enumerate(after)))
    assert (verdict, seeds) == expected[1:]
    assert gain == (None if expected[0] is None else pytest.approx(expected[0]))
