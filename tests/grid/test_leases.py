"""Machines that are taken away: what is finished is brought home, and nothing begins in vain."""

import json
import sys
import time
from dataclasses import replace

import pytest

from fedfm.core.errors import UserError
from fedfm.grid import worker
from fedfm.grid.budget import MARGIN, UNCOUNTED, Budget, Speed
from fedfm.grid.feature_points import read_points
from fedfm.grid.job_pools import InProcess
from fedfm.grid.merge import collect_results, merge
from fedfm.grid.progress import LineDisplay
from fedfm.grid.repeats import find_repeats
from fedfm.grid.runner import Grid
from fedfm.grid.store import Store
from fedfm.grid.worker import JobStopped, Watch, run_job
from fedfm.run.records import RoundRecord
from fedfm.run.runner import run_configs
from tests.grid.grids import found, jobs_of, recipe, run, timeless

SMALL = {"config.toml", "data.json", "machine.json", "rounds.csv", "rounds.jsonl", "summary.json"}


def grid(results, budget, collect=None) -> Grid:
    return Grid(results, budget, InProcess(results, budget), LineDisplay(0, budget), collect)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The results of a whole grid."""
    results = tmp_path_factory.mktemp("whole")
    run(jobs_of(recipe()), results)
    return results


# ---- time ----------------------------------------------------------------------------------------


def test_a_result_knows_what_its_job_took_by_the_clock(whole):
    for summary in found(whole).values():
        assert summary.together == 2
        assert summary.clock > summary.totals["seconds"]


def test_a_resumed_run_does_not_know(tmp_path):
    job = jobs_of(recipe(), only=("FedAvg", "E = 1"))[0]
    run_job(job, tmp_path, Budget(), stop=lambda: True)
    run_job(job, tmp_path, Budget())
    assert {(each.clock, each.together) for each in found(tmp_path).values()} == {(0.0, 0)}


def test_estimates_are_by_the_clock_and_by_how_many_run_together(whole):
    one = next(iter(found(whole).values()))
    config = jobs_of(recipe())[0].config
    pair = replace(one, config=config.as_toml(), clock=2.0, together=2)
    alone, old = replace(pair, clock=3.0, together=1), replace(pair, clock=0.0, together=0)
    speed = Speed.of([pair, alone], "cpu")
    assert speed.seconds(config, 2) == pytest.approx(MARGIN * 2 * 2.0)
    assert speed.seconds(config, 1) == pytest.approx(MARGIN * 3.0)
    assert speed.seconds(config, 3) == pytest.approx(MARGIN * 3 * 3.0), "the slowest counts"
    assert Speed.of([old], "cpu").seconds(config) == pytest.approx(
        MARGIN * UNCOUNTED * old.totals["seconds"]
    )


def slow(whole, results, seconds: float) -> None:
    """Results from which every run is expected to take so many seconds."""
    job = jobs_of(recipe(), only=("E = 1",))[0]
    one = next(iter(found(whole).values()))
    config = job.config.with_seed(9).as_toml()
    Store(results).append([replace(one, config=config, seed=9, clock=seconds, together=1)])


def test_nothing_begins_that_cannot_end_where_it_would_be_lost(whole, tmp_path):
    slow(whole, tmp_path, 1000.0)
    soon = Budget(time.time() + 60, whole=True)
    assert grid(tmp_path, soon).run(jobs_of(recipe(), seeds=1)) == []
    assert list(tmp_path.glob("runs/*")) == []


def test_seeds_stay_together_if_there_is_time_for_all(whole, tmp_path):
    slow(whole, tmp_path, 1.0)
    jobs = jobs_of(recipe(), only=("E = 1",))
    assert [len(o.job.seeds) for o in grid(tmp_path, Budget(time.time() + 3600)).run(jobs)] == [
        2,
        2,
    ]


def watch(every: int, budget: Budget, stop: bool = False) -> Watch:
    return Watch(2, 100, every, budget, lambda: stop, None)


def after(number: int, seconds: float = 1.0) -> RoundRecord:
    return RoundRecord(number, 0.5, 0.5, 0.1, seconds, 0, 0, 0, 0, 1)


@pytest.mark.parametrize(
    ("number", "every", "seconds", "stops"),
    [
        (7, 1, 3, False),
        (7, 1, 1, True),
        (7, 10, 1, False),
        (10, 10, 19, True),
        (10, 10, 30, False),
        (95, 5, 9, True),
        (100, 10, 0, False),
    ],
)
def test_runs_stop_at_a_checkpoint_if_there_is_no_time_for_the_next(number, every, seconds, stops):
    assert watch(every, Budget(time.time() + seconds))._should_stop(after(number)) is stops


@pytest.mark.parametrize(
    ("number", "seconds", "stops"),
    [(3, 100, True), (3, 300, False), (11, 100, False), (99, -5, False)],
)
def test_half_a_job_is_given_up_early_or_not_at_all(number, seconds, stops):
    watched = watch(10, Budget(time.time() + seconds, whole=True))
    watched._should_stop(after(number - 1))
    assert watched._should_stop(after(number)) is stops


def test_a_round_with_compilation_in_it_says_nothing_about_the_others():
    watched = watch(10, Budget(time.time() + 300, whole=True))
    assert not watched._should_stop(after(1, seconds=60.0))
    assert not watched._should_stop(after(2))
    assert not watched._should_stop(after(3, seconds=5.0))


def test_the_first_run_that_has_a_round_speaks_for_all():
    """Which is another one after the first has diverged; the others' say the same."""
    told: list[RoundRecord] = []
    watched = Watch(3, 100, 10, Budget(), lambda: len(told) > 2, told.append)
    for number in (1, 1, 1, 2, 2, 8):
        watched(after(number))
    assert [record.round for record in told] == [1, 2, 8]
    watched(after(9))
    with pytest.raises(JobStopped):
        watched(after(10))
    watched(after(3))  # of runs that are trained after the others
    assert [record.round for record in told] == [1, 2, 8, 9, 10, 3]


def test_a_user_who_stops_waits_for_the_checkpoint():
    assert not watch(10, Budget(), stop=True)._should_stop(after(7))
    assert watch(10, Budget(), stop=True)._should_stop(after(10))


# ---- home ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["home", "home.tgz"])
def test_after_every_job_its_small_files_are_home(tmp_path, whole, name, monkeypatch):
    home, seen, real = tmp_path / name, list[int](), run_configs

    def looking(*arguments, **options):
        merged = tmp_path / f"seen-{len(seen)}"
        seen.append(merge(home, merged).results if home.exists() else 0)
        return real(*arguments, **options)

    monkeypatch.setattr(worker, "run_configs", looking)
    grid(tmp_path / "there", Budget(whole=True), home).run(jobs_of(recipe()))
    assert seen == [0, 2, 4, 6], "a machine that is taken away loses the running job only"
    monkeypatch.undo()
    merge(home, tmp_path / "here")
    assert timeless(tmp_path / "here") == timeless(whole)
    folders = list((tmp_path / "here" / "runs").iterdir())
    assert len(folders) == 8
    assert all({path.name for path in folder.iterdir()} == SMALL for folder in folders)
    assert [path.name for path in tmp_path.glob("*.partial")] == []


def test_measured_features_come_along_as_points(tmp_path):
    jobs = jobs_of(recipe("quality", measures=("nmi",)), seeds=1, only=("FedAvg", "E = 1"))
    run(jobs, tmp_path / "there")
    collect_results(tmp_path / "there", tmp_path / "here")
    points = read_points(jobs[0].folder(tmp_path / "here", 0))
    assert points is not None
    assert len(points.features) == len(points.labels) > 100
    assert points.classes == tuple("0123456789")
    assert read_points(tmp_path) is None


def test_a_run_that_cannot_be_measured_is_kept(tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "fedfm.grid.feature_points", None)
    jobs = jobs_of(recipe("quality", measures=("nmi",)), seeds=1, only=("FedAvg", "E = 1"))
    assert run(jobs, tmp_path)[0].finished == 1
    assert "is not measured" in caplog.text
    assert [each.measures for each in found(tmp_path).values()] == [{}]


def test_an_archive_that_was_cut_short_is_named(whole, tmp_path):
    archive = collect_results(whole, tmp_path / "home.tgz")
    archive.write_bytes(archive.read_bytes()[:-500])
    with pytest.raises(UserError, match=r"home\.tgz"):
        merge(archive, tmp_path / "here")


@pytest.mark.parametrize(
    ("content", "pattern"), [(None, r"home\.tgz$"), (b"no tar", r"(?s)home\.tgz.*download")]
)
def test_a_bad_archive_is_named(tmp_path, content, pattern):
    if content:
        (tmp_path / "home.tgz").write_bytes(content)
    with pytest.raises(UserError, match=pattern):
        merge(tmp_path / "home.tgz", tmp_path / "here")


# ---- repeating -----------------------------------------------------------------------------------


def test_a_repeated_run_gives_the_same(whole, tmp_path):
    run(jobs_of(recipe(), only=("FedFM",)), tmp_path)
    again = find_repeats(Store(tmp_path), Store(whole))
    assert len(again) == 4
    assert all(each.same for each in again)


def test_the_first_round_that_differs_is_named(whole, tmp_path, caplog):
    run(jobs_of(recipe(), only=("FedFM", "E = 1"), seeds=1), tmp_path)
    (path,) = tmp_path.glob("runs/*/rounds.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[1]["train_loss"] += 1e-9
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (repeat,) = find_repeats(Store(tmp_path), Store(whole))
    assert not repeat.same
    assert "first in round 2" in str(repeat)
    home = tmp_path / "home"
    merge(whole, home)
    assert merge(tmp_path, home).repeats == (repeat,)
    assert "what is here stays" in caplog.text
