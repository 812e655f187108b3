"""The paper's claims: decided by the runs, and not at all without them."""

import pytest

from fedfm.paper.catalogue import load_recipe
from fedfm.paper.claims import FAILS, HOLDS, UNKNOWN, judge_claims
from fedfm.paper.plan import Claim, build_tables, load_plan
from fedfm.report.tables.build import build_table
from tests.grid.results import result

PAIR = Claim(
    "{better} beats {than}", "anchors", {"method": ["FedFM (weighted)"]}, {"method": ["FedAvg"]}
)


def outcome(claim: Claim, **changes):
    accuracies = {"FedAvg": [66.0, 67.0, 68.0], "FedFM (weighted)": [72.0, 73.0, 74.0]} | changes
    runs = [
        result({"method": method}, seed, value, recipe="anchors")
        for method, values in accuracies.items()
        for seed, value in enumerate(values)
    ]
    (found,) = judge_claims([claim], {"anchors": build_table(load_recipe("anchors"), runs)})
    return found


def test_a_claim_that_holds_says_by_how_much():
    found = outcome(PAIR)
    assert found.row == ["FedFM (weighted) beats FedAvg", "+6.20", "+6.00", "+6.0", "3", HOLDS]


def test_a_claim_that_does_not_hold_stays_visible():
    assert outcome(PAIR, FedAvg=[80.0, 80.0, 80.0]).outcome == FAILS
    assert outcome(PAIR, FedAvg=[80.0, 80.0, 80.0]).difference == pytest.approx(-7.0)


def test_only_seeds_that_both_have_count():
    found = outcome(PAIR, FedAvg=[60.0])
    assert (found.seeds, found.difference) == ([0], pytest.approx(12.0))
    assert found.deviations is None
    assert outcome(PAIR, FedAvg=[]).row[1:] == ["+6.20", "", "", "0", UNKNOWN]


def test_close_is_close_enough_where_the_claim_says_so():
    close = Claim(
        "close", "anchors", {"method": ["FedAvg"]}, {"method": ["FedFM (weighted)"]}, within=7
    )
    assert outcome(close).outcome == HOLDS
    assert outcome(close, FedAvg=[50.0]).outcome == FAILS


def test_the_best_of_several_is_the_one_to_beat_once_all_are_run():
    rivals = {"method": ["FedAvg", "FedFM (uniform)"]}
    claim = Claim("best", "anchors", {"method": ["FedFM (weighted)"]}, rivals, best=True)
    assert outcome(claim).outcome == UNKNOWN
    found = outcome(claim, **{"FedFM (uniform)": [75.0, 75.0, 75.0]})
    assert (found.outcome, found.difference) == (FAILS, pytest.approx(-2.0))
    assert found.papers == pytest.approx(0.02)


def test_every_claim_of_the_plan_is_about_cells_of_its_recipes(tmp_path):
    plan = load_plan()
    found = list(judge_claims(plan.claims, build_tables(plan, tmp_path, ())))
    assert {each.outcome for each in found} == {UNKNOWN}
    says = [each.says for each in found]
    assert len(set(says)) == len(says) > 40
    assert "FedFM beats SCAFFOLD under NIID-2" in says
    assert "feature matching improves MOON" in says


def test_less_traffic_is_better():
    cells = (("FedAvg", 100.0), ("FedFM-Lite, a = 5", 20.0))
    runs = [
        result({"method": method}, 0, 70.0, recipe="lite", totals={"floats_up": floats})
        for method, floats in cells
    ]
    better, than = ({"method": [method]} for method, _ in reversed(cells))
    claim = Claim("less", "lite", better, than, measure="floats_up")
    (found,) = judge_claims([claim], {"lite": build_table(load_recipe("lite"), runs)})
    assert (found.outcome, found.difference) == (HOLDS, 80.0)
