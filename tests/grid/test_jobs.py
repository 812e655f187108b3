"""Which jobs there are, in which order they run, and how long they should take."""

import time
from dataclasses import replace

import pytest

from fedfm.core.errors import UserError
from fedfm.grid.budget import Budget, Speed, estimate_cost, format_duration
from fedfm.grid.job_pools import InProcess
from fedfm.grid.jobs import plan_jobs, sort_jobs
from fedfm.grid.progress import LineDisplay
from fedfm.grid.runner import Grid
from fedfm.grid.store import Store
from fedfm.grid.worker import run_job
from fedfm.paper.catalogue import load_recipe
from tests.grid.grids import found, jobs_of, recipe, run


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The results of a whole grid."""
    results = tmp_path_factory.mktemp("whole")
    run(jobs_of(recipe()), results)
    return results


def test_only_picks_cells_by_label():
    def titles(*only: str) -> list[str]:
        return [
            job.labels[0]["method"] + job.labels[0]["epochs"]
            for job in jobs_of(recipe(), only=only)
        ]

    assert titles("fedfm") == ["FedFME = 2", "FedFME = 1"]
    assert titles("FedFM", "E = 1") == ["FedFME = 1"]
    assert titles("FedFM", "FedAvg", "E = 1") == ["FedAvgE = 1", "FedFME = 1"]
    assert len(titles("Fed")) == 4
    with pytest.raises(UserError, match=r"--only moon.*FedAvg"):
        titles("moon")


# ---- the order -----------------------------------------------------------------------------------


def test_cheap_cells_come_first(tmp_path):
    assert [job.labels[0]["epochs"] for job in sort_jobs(jobs_of(recipe()), tmp_path)] == [
        "E = 1",
        "E = 1",
        "E = 2",
        "E = 2",
    ]


def test_with_little_time_every_cell_gets_one_seed_before_any_gets_the_others(tmp_path):
    jobs = jobs_of(recipe(), seeds=3)
    begun = jobs[0]
    run_job(replace(begun, seeds=(1,)), tmp_path, Budget(), stop=lambda: True)
    ordered = sort_jobs(jobs, tmp_path, spread=True)
    assert [len(job.seeds) for job in ordered] == [1, 1, 1, 1, 2, 2, 2, 2]
    firsts = {job.digest: job.seeds for job in ordered[:4]}
    assert firsts.pop(begun.digest) == (1,), "what was begun goes on first"
    assert set(firsts.values()) == {(0,)}


def test_costs_are_in_proportion():
    of = {
        job.labels[0]["data"]: job.cost
        for job in plan_jobs(load_recipe("main"), False, [0], (), ["FedAvg"])
    }
    assert of["CINIC-10"] == pytest.approx(1.8 * of["CIFAR-10"])
    assert of["CIFAR-100"] > 10 * of["CIFAR-10"]


# ---- time ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("25m", 1500), ("1h30m", 5400), ("0.5h", 1800)]
)
def test_budgets_are_read(text, seconds):
    assert Budget.parse(text).left == pytest.approx(seconds, abs=1)


@pytest.mark.parametrize("text", ["25", "m", "1x", "0s", "5m3"])
def test_other_budgets_are_refused(text):
    with pytest.raises(UserError, match="--budget"):
        Budget.parse(text)


def test_durations_in_words():
    assert [format_duration(s) for s in (5, 300, 12000)] == ["5 s", "5 min", "3 h 20 min"]


def test_an_estimate_scales_with_the_cost(whole):
    summaries = list(found(whole).values())
    speed = Speed.of(summaries, "cpu")
    cheap, dear = (jobs_of(recipe(), only=(label,))[0].config for label in ("E = 1", "E = 2"))
    assert estimate_cost(dear) == 2 * estimate_cost(cheap)
    short = speed.seconds(cheap) or 0
    assert speed.seconds(dear) == pytest.approx(2 * short)
    mean = sum(summary.totals["seconds"] for summary in summaries) / len(summaries)
    assert mean / 20 < short < 20 * mean
    assert Speed.of(summaries, "cuda").seconds(cheap) is None


def test_results_of_methods_that_are_not_known_here_do_not_matter(whole):
    summaries = list(found(whole).values())
    strange = replace(summaries[0], config=summaries[0].config | {"method": {"mine": {}}})
    assert Speed.of([strange, *summaries], "cpu").rates == Speed.of(summaries, "cpu").rates


def test_a_job_that_does_not_fit_waits_for_those_that_do(tmp_path, whole):
    jobs = jobs_of(recipe(), seeds=1)
    Store(tmp_path).append(
        replace(
            each,
            config=each.config | {"seed": 7},
            seed=7,
            totals={"seconds": estimate_cost(jobs[0].config)},
        )
        for each in found(whole).values()
    )
    rate = Speed.of(Store(tmp_path).summaries(), "cpu").seconds(jobs[0].config) or 0
    budget = Budget(time.time() + 0.75 * rate)
    grid = Grid(tmp_path, budget, InProcess(tmp_path, budget), LineDisplay(0, budget))
    dear_first = sorted(jobs, key=lambda job: -job.cost)
    assert dear_first[grid._next(dear_first) or 0].labels[0]["epochs"] == "E = 1"
    assert grid._next(dear_first[:1]) == 0, "what does not fit is begun if there is nothing else"
