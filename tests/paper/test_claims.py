"""The paper's claims: decided by the runs, and not at all without them."""

from dataclasses import replace

import pytest

from fedfm.config import parse
from fedfm.paper.catalogue import load_recipe
from fedfm.paper.claims import FAILS, HOLDS, UNDECIDED, UNKNOWN, judge_claims
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
    (claim_result,) = judge_claims([claim], {"anchors": build_table(load_recipe("anchors"), runs)})
    return claim_result


def test_a_claim_that_holds_says_by_how_much():
    result = outcome(PAIR, **{"FedFM (weighted)": [72.0, 73.0, 74.6]})
    # differences 6, 6, 6.6: mean 6.2, deviation 0.3464, t = 4.303: 6.2 +- 0.86
    assert result.row == [
        "FedFM (weighted) beats FedAvg",
        "+6.20",
        "+6.20 ± 0.35",
        "+5.34 to +7.06",
        "3",
        f"{HOLDS}",
    ]


def test_a_claim_that_does_not_hold_stays_visible():
    assert outcome(PAIR, FedAvg=[80.0, 80.0, 80.0]).outcome == FAILS
    assert outcome(PAIR, FedAvg=[80.0, 80.0, 80.0]).difference == pytest.approx(-7.0)


def test_several_seeds_decide_by_the_interval_of_their_differences():
    """2, 3 and 4: deviation 1, so 3 +- 2.48. 1, 3 and 5: deviation 2, so 3 +- 4.97."""
    assert outcome(PAIR, FedAvg=[70.0, 70.0, 70.0]).outcome == HOLDS
    wide = outcome(PAIR, FedAvg=[71.0, 70.0, 69.0])
    assert wide.deviation == pytest.approx(2.0)
    assert wide.interval() == pytest.approx((-1.968, 7.968), abs=1e-3)
    assert wide.outcome == UNDECIDED


@pytest.mark.parametrize(
    ("accuracy", "expected"),
    [(71.0, HOLDS), (71.1, UNDECIDED), (72.0, UNDECIDED), (72.9, UNDECIDED), (73.0, FAILS)],
)
def test_one_seed_decides_only_from_a_point_on(accuracy, expected):
    result = outcome(PAIR, FedAvg=[accuracy])
    assert (result.outcome, result.deviation, result.row[3]) == (expected, None, "")


def test_only_seeds_that_both_have_count():
    result = outcome(PAIR, FedAvg=[60.0])
    assert (result.seeds, result.difference) == ([0], pytest.approx(12.0))
    assert outcome(PAIR, FedAvg=[]).row[1:] == ["+6.20", "", "", "0", UNKNOWN]


def test_close_is_close_enough_where_the_claim_says_so():
    close = Claim(
        "close", "anchors", {"method": ["FedAvg"]}, {"method": ["FedFM (weighted)"]}, within=7
    )
    assert outcome(close).outcome == HOLDS
    assert outcome(close, FedAvg=[50.0]).outcome == FAILS


COMPARABLE = replace(PAIR, kind="comparable", within=1.0)


@pytest.mark.parametrize(
    ("accuracies", "expected"),
    [
        ([72.2, 72.9, 74.1], HOLDS),  # -0.2, 0.1, -0.1: -0.07 +- 0.26
        ([71.0, 73.0, 75.0], UNDECIDED),  # 1, 0, -1: 0 +- 1.69
        ([70.0, 71.1, 71.9], FAILS),  # 2, 1.9, 2.1
        ([72.0], UNDECIDED),  # equal, but one seed shows no equivalence
        ([70.5], UNDECIDED),
        ([70.0], FAILS),  # two points apart
        ([74.0], FAILS),
        ([], UNKNOWN),
    ],
)
def test_comparable_is_shown_by_an_interval_within_the_margin(accuracies, expected):
    assert outcome(COMPARABLE, FedAvg=accuracies).outcome == expected


def test_the_best_of_several_is_the_one_to_beat_once_all_are_run():
    rivals = {"method": ["FedAvg", "FedFM (uniform)"]}
    claim = Claim("best", "anchors", {"method": ["FedFM (weighted)"]}, rivals, best=True)
    assert outcome(claim).outcome == UNKNOWN
    result = outcome(claim, **{"FedFM (uniform)": [75.0, 75.1, 76.0]})
    assert result.outcome == FAILS
    assert result.difference == pytest.approx(-7.1 / 3)
    assert result.papers == pytest.approx(0.02)


def test_a_rival_may_be_a_cell_of_another_table():
    claim = Claim(
        "with FM",
        "modularity",
        {"matching": ["with FM"]},
        {"method": ["SCAFFOLD"], "data": ["CIFAR-10"], "partition": ["NIID-1"]},
        {"method": ["MOON"]},
        than_recipe="main",
    )
    scaffold = {"method": "SCAFFOLD", "data": "CIFAR-10", "partition": "NIID-1"}
    tables = {
        "modularity": build_table(
            load_recipe("modularity"),
            [result({"method": "MOON", "matching": "with FM"}, 0, 73.0, recipe="modularity")],
        ),
        "main": build_table(load_recipe("main"), [result(scaffold, 0, 70.0, recipe="main")]),
    }
    (claim_result,) = judge_claims([claim], tables)
    assert claim_result.outcome == HOLDS
    assert claim_result.difference == pytest.approx(3.0)


TRIED = Claim("x", "proto", {"method": ["FedFM"]}, {"method": ["MOON", "SCAFFOLD", "FedAvg"]})


@pytest.mark.parametrize(
    ("choice", "untuned"),
    [({}, ("MOON",)), ({"moon": {"mu": 1.0}}, ()), ({"moon": {"mu": 5.0}}, ("MOON",))],
)
def test_a_claim_names_rivals_that_were_not_tuned(choice, untuned):
    """Either nothing was chosen, or the run has another value."""
    methods = {"FedFM": "fedfm", "MOON": {"moon": {"mu": 1.0}}, "SCAFFOLD": "scaffold"}
    runs = [
        result(
            {"method": label}, 0, 70.0, recipe="proto", config=parse({"method": method}).as_toml()
        )
        for label, method in (methods | {"FedAvg": "fedavg"}).items()
    ]
    table = build_table(load_recipe("proto"), runs)
    results = list(judge_claims([TRIED], {"proto": table}, choice))
    assert [each.untuned for each in results] == [untuned, (), ()]
    assert results[0].row[-1] == UNDECIDED + (" (MOON not tuned)" if untuned else "")


def test_every_claim_of_the_plan_is_about_cells_of_its_recipes(tmp_path):
    plan = load_plan()
    results = list(judge_claims(plan.claims, build_tables(plan, tmp_path, ())))
    assert {each.outcome for each in results} == {UNKNOWN}
    says = [each.says for each in results]
    assert len(set(says)) == len(says) > 150
    assert "FedFM beats SCAFFOLD: CIFAR-10, NIID-2" in says
    assert "feature matching improves MOON" in says
    for failing in ("MOON beats generalised FedProto", "SCAFFOLD is second best: CIFAR-10, NIID-1"):
        assert failing in says


def test_less_traffic_is_better():
    cells = (("FedAvg", 100.0), ("FedFM-Lite, a = 5", 20.0))
    runs = [
        result({"method": method}, 0, 70.0, recipe="lite", totals={"floats_up": floats})
        for method, floats in cells
    ]
    better, than = ({"method": [method]} for method, _ in reversed(cells))
    claim = Claim("less", "lite", better, than, measure="floats_up")
    (claim_result,) = judge_claims([claim], {"lite": build_table(load_recipe("lite"), runs)})
    assert (claim_result.outcome, claim_result.difference) == (HOLDS, 80.0)
