"""The grid runner: what is missing runs once, in order, in time, and survives interruptions."""

import re
import time
from dataclasses import replace

import pytest
import torch
from rich.progress import TimeElapsedColumn

from fedfm.core.checkpoint import Damaged
from fedfm.core.errors import UserError
from fedfm.grid import progress, worker
from fedfm.grid.budget import Budget
from fedfm.grid.job_pools import LocalProcesses
from fedfm.grid.jobs import find_missing, select_current
from fedfm.grid.progress import BarDisplay, LineDisplay, describe_outcome
from fedfm.grid.runner import Grid
from fedfm.grid.store import Store, read_summary
from fedfm.grid.worker import JobOutcome, claim_seeds, run_job
from fedfm.run import prepare, runner
from fedfm.run.console import make_bars
from fedfm.run.runner import run_configs
from tests.grid.grids import METHODS, found, jobs_of, recipe, run, timeless


@pytest.fixture
def trained(monkeypatch) -> list[int]:
    """How many runs were trained together, each time."""
    counts = []
    real = run_configs

    def counting(runs, *rest, **options):
        counts.append(len(runs))
        return real(runs, *rest, **options)

    monkeypatch.setattr(worker, "run_configs", counting)
    return counts


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The results of an uninterrupted grid."""
    results = tmp_path_factory.mktemp("whole")
    run(jobs_of(recipe()), results)
    return results


# ---- what runs -----------------------------------------------------------------------------------


def test_seeds_of_a_cell_run_together_and_nothing_runs_twice(tmp_path, trained):
    outcomes = run(jobs_of(recipe()), tmp_path)
    assert trained == [2, 2, 2, 2]
    assert [outcome.finished for outcome in outcomes] == [2, 2, 2, 2]
    assert len(found(tmp_path)) == 8
    assert run(jobs_of(recipe()), tmp_path) == []
    assert run(jobs_of(recipe(), seeds=3), tmp_path)[0].finished == 1
    assert trained == [2, 2, 2, 2, 1, 1, 1, 1]
    assert len(found(tmp_path)) == 12


def test_a_result_says_where_it_is_from(whole):
    summary = next(iter(found(whole).values()))
    assert (summary.recipe, summary.quick) == ("tiny", False)
    assert summary.cell.keys() == {"method", "epochs"}
    assert (whole / summary.folder / "config.toml").exists()
    assert summary.folder == f"runs/{summary.digest}-{summary.seed}"
    assert {"fedfm", "torch"} <= summary.versions.keys()
    assert summary.finished.endswith("+00:00")


def test_cells_that_ask_for_the_same_share_their_runs(tmp_path, trained):
    twins = recipe(axes={"method": METHODS | {"Twin": METHODS["FedAvg"]}}, columns=())
    run(jobs_of(twins), tmp_path)
    assert trained == [2, 2]
    assert len(found(tmp_path)) == 6


def test_another_recipe_takes_results_over(tmp_path, trained):
    run(jobs_of(recipe()), tmp_path)
    trained.clear()
    others = jobs_of(recipe("other"))
    run(others, tmp_path)
    assert trained == []
    summaries = Store(tmp_path).summaries()
    assert len(summaries) == 8
    shown = select_current(others, summaries)
    assert {(each.recipe, *each.key) for each in shown} == {
        ("other", *key) for job in others for key in job.keys
    }


def test_changed_settings_are_other_runs_and_the_current_ones_are_shown(tmp_path, caplog):
    plain, changed = jobs_of(recipe()), jobs_of(recipe(), "lr=0.02")
    run(plain, tmp_path)
    run(changed, tmp_path)
    everything = Store(tmp_path).summaries()
    assert len(everything) == 16
    for jobs in (plain, changed):
        shown = select_current(jobs, everything)
        assert {each.digest for each in shown} == {job.digest for job in jobs}
    assert "8 results of other settings are not shown" in caplog.text
    others = jobs_of(recipe(), "lr=0.03")
    assert select_current(others, everything) == everything


def test_an_unknown_method_is_named_and_the_rest_runs(tmp_path, caplog):
    axes = {"method": METHODS | {"New": {"method": {"fedavgg": {}}}}}
    outcomes = run(jobs_of(recipe(axes=axes, columns=())), tmp_path)
    assert "New is left out: unknown method 'fedavgg': did you mean 'fedavg" in caplog.text
    assert [outcome.finished for outcome in outcomes] == [2, 2]


def test_seeds_that_finish_are_kept_where_one_diverges(tmp_path, monkeypatch):
    build = prepare.build_model

    def broken(config, dataset):
        model = build(config, dataset)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1e30 if config.seed == 1 else 1)
        return model

    monkeypatch.setattr(runner, "build_model", broken)
    (outcome,) = run(jobs_of(recipe(), seeds=3, only=("FedAvg", "E = 1")), tmp_path)
    assert outcome.finished == 2
    assert outcome.problem.startswith("seed 1, round 1: the training of every client diverged")
    assert {summary.seed for summary in found(tmp_path).values()} == {0, 2}


def test_a_cell_that_fails_is_named_and_the_rest_runs(tmp_path):
    axes = {"method": {"Bad": {"training": {"clients": 9999}}} | METHODS}
    outcomes = run(jobs_of(recipe(axes=axes, columns=())), tmp_path)
    problems = [outcome.problem for outcome in outcomes if outcome.problem]
    assert len(problems) == 1
    assert "9999 clients cannot share" in problems[0]
    assert len(found(tmp_path)) == 4


def test_what_nobody_foresaw_stops_one_cell_only_and_is_shown_whole(tmp_path, monkeypatch, caplog):
    real, runs = run_configs, iter(range(9))

    def broken(*arguments, **options):
        if next(runs) == 0:
            raise ZeroDivisionError("a fault of ours")
        return real(*arguments, **options)

    monkeypatch.setattr(worker, "run_configs", broken)
    outcomes = run(jobs_of(recipe()), tmp_path)
    assert [outcome.problem for outcome in outcomes] == [
        "ZeroDivisionError: a fault of ours", "", "", "",
    ]  # fmt: skip
    assert "in broken" in caplog.text
    assert len(found(tmp_path)) == 6


# ---- time ----------------------------------------------------------------------------------------


def test_when_the_time_is_over_nothing_begins(tmp_path):
    assert run(jobs_of(recipe()), tmp_path, Budget(time.time() - 1)) == []


class Rounds(Budget):
    """A budget that is over after so many questions."""

    left_over = 0

    @property
    def left(self) -> float:
        type(self).left_over -= 1
        return 1000.0 if self.left_over > 0 else 0.0


@pytest.mark.parametrize("questions", [2, 3, 4, 6, 9])
def test_a_budget_stops_after_a_round_and_the_next_one_goes_on(tmp_path, whole, questions):
    Rounds.left_over = questions
    outcomes = run(jobs_of(recipe()), tmp_path, Rounds())
    assert len(outcomes) < 4 or any(outcome.stopped for outcome in outcomes)
    run(jobs_of(recipe()), tmp_path)
    assert timeless(tmp_path) == timeless(whole)


# ---- interruptions -------------------------------------------------------------------------------


def test_a_stopped_job_goes_on_where_it_was(tmp_path, whole):
    job = jobs_of(recipe())[0]
    outcome = run_job(job, tmp_path, Budget(), stop=lambda: True)
    assert outcome.stopped
    assert [job.rounds_done(tmp_path, seed) for seed in job.seeds] == [1, 1]
    assert job.work_left(tmp_path) == pytest.approx(4 / 3)
    assert find_missing([job], Store(tmp_path).summaries()) == [job]
    run(jobs_of(recipe()), tmp_path)
    assert timeless(tmp_path) == timeless(whole)


def test_runs_that_ended_before_their_line_was_written_are_not_run_again(tmp_path, trained, whole):
    run(jobs_of(recipe()), tmp_path)
    trained.clear()
    (tmp_path / "results.jsonl").write_text('{"half a line')
    run(jobs_of(recipe()), tmp_path)
    assert trained == []
    (tmp_path / "results.jsonl").write_text(
        "".join((tmp_path / "results.jsonl").read_text().splitlines(keepends=True)[1:])
    )
    assert timeless(tmp_path) == timeless(whole)


def test_a_run_that_another_runner_is_at_is_left_to_it(tmp_path, trained):
    job = jobs_of(recipe())[0]
    with claim_seeds(replace(job, seeds=(1,)), tmp_path) as own:
        assert own == (1,)
        outcome = run_job(job, tmp_path, Budget())
        assert (outcome.finished, outcome.elsewhere) == (1, 1)
    assert trained == [1]
    outcome = run_job(job, tmp_path, Budget())
    assert (outcome.finished, outcome.elsewhere) == (1, 0)
    outcome = run_job(job, tmp_path, Budget())
    assert (outcome.finished, outcome.elsewhere) == (0, 0)
    assert describe_outcome(outcome) == "was there already"


def test_several_processes_give_the_same(tmp_path, whole):
    budget = Budget()
    engine = LocalProcesses(tmp_path, budget, slots=2)
    try:
        outcomes = Grid(tmp_path, budget, engine, LineDisplay(8, budget)).run(jobs_of(recipe()))
    finally:
        engine.close()
    assert sum(outcome.finished for outcome in outcomes) == 8
    assert timeless(tmp_path) == timeless(whole)


# ---- measures and run folders --------------------------------------------------------------------


def test_feature_measures_are_taken_of_runs_that_are_there(tmp_path, trained):
    run(jobs_of(recipe()), tmp_path)
    trained.clear()
    run(jobs_of(recipe("quality", measures=("nmi", "silhouette"))), tmp_path)
    assert trained == []
    measured = [each for each in found(tmp_path).values() if each.recipe == "quality"]
    assert len(measured) == 8
    assert all(0 < each.measures["nmi"] < 1 for each in measured)
    assert (
        find_missing(jobs_of(recipe("quality", measures=("nmi",))), Store(tmp_path).summaries())
        == []
    )


def test_a_run_without_its_model_cannot_be_measured(tmp_path):
    job = jobs_of(recipe())[0]
    run_job(job, tmp_path, Budget())
    (job.folder(tmp_path, 0) / "model.safetensors").unlink()
    outcome = run_job(replace(job, measures=("nmi",)), tmp_path, Budget())
    assert "has no model to measure" in outcome.problem


def test_a_half_written_run_has_no_summary(tmp_path):
    job = jobs_of(recipe())[0]
    run_job(job, tmp_path, Budget(), stop=lambda: True)
    with pytest.raises(UserError, match="--resume"):
        read_summary(job.folder(tmp_path, 0))


def test_a_damaged_summary_is_named(tmp_path):
    job = jobs_of(recipe())[0]
    run_job(job, tmp_path, Budget())
    (job.folder(tmp_path, 0) / "summary.json").write_text("{}")
    with pytest.raises(Damaged, match=re.escape(str(job.folder(tmp_path, 0)))):
        read_summary(job.folder(tmp_path, 0))


def test_without_a_terminal_a_long_job_gives_signs_of_life(tmp_path, monkeypatch, capsys):
    one = jobs_of(recipe(), only=("FedAvg", "E = 1"))
    monkeypatch.setattr(progress, "QUIET", 0.0)
    run(one, tmp_path / "slow")
    assert "FedAvg / E = 1, seeds 0, 1: round 1 of " in capsys.readouterr().err
    monkeypatch.undo()
    run(one, tmp_path / "fast")
    assert "round" not in capsys.readouterr().err


def test_a_stopped_outcome_in_words():
    job = jobs_of(recipe())[0]
    assert "resumed" in describe_outcome(JobOutcome(job, stopped=True))
    assert describe_outcome(JobOutcome(job, problem="no data")) == "failed: no data"
    assert describe_outcome(JobOutcome(job, elsewhere=2)) == "being run elsewhere"


def test_the_bar_of_all_runs_shows_the_time_left():
    (job,) = jobs_of(recipe(), seeds=1, only=("FedAvg", "E = 1"))
    bars = make_bars(TimeElapsedColumn())
    display = BarDisplay(1, Budget.parse("10m"), bars)
    display.begin(job)
    display.end(JobOutcome(job, finished=1))
    (whole,) = bars.tasks
    assert whole.completed == 1
    assert "left of the budget" in whole.fields["status"]
