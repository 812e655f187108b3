"""`fedfm sweep`: a grid or a search, killed and continued, and what it leaves behind."""

import csv
import json
import random
import signal
import tomllib
from pathlib import Path

import pytest

from fedfm.config import load_config
from fedfm.grid.store import Store
from tests.cli.test_table import Process
from tests.cli.tools import TINY, sets
from tests.folders import contents
from tests.grid.grids import found, timeless

CHANGES = [change for change in TINY if change not in ("--set", "lr=0.01")]
SHORT = sets(*CHANGES, "rounds=2", "method=fedprox")
GRID = (
    "sweep",
    "digits",
    *SHORT,
    *sets("method.mu=0.01,1", "training.lr=0.01,0.1"),
    "--seeds",
    "2",
)


def test_a_sweep_prints_a_table_and_the_best_and_leaves_a_report(command, tmp_path):
    answer = command(*GRID)
    assert answer.code == 0
    assert "mu = 0.01" in answer.out
    assert "lr = 0.1" in answer.out
    results = tmp_path / "sweeps" / "digits"
    summaries = Store(results).summaries()
    assert len(summaries) == 8
    best = tomllib.loads((results / "best.toml").read_text())
    means: dict[tuple[float, float], list[float]] = {}
    for each in summaries:
        mu, lr = each.config["method"]["fedprox"]["mu"], each.config["training"]["lr"]
        assert each.val_accuracy is not None
        means.setdefault((mu, lr), []).append(each.val_accuracy)
    mu, lr = max(means, key=lambda key: sum(means[key]))
    assert (best["method"]["fedprox"]["mu"], best["training"]["lr"]) == (mu, lr)
    assert f"best by validation: mu = {mu:g}, lr = {lr:g}" in answer.out
    assert "fedfm run sweeps/digits/best.toml --seeds 2" in answer.out
    assert "method.mu ↓" in (results / "report.html").read_text()


def test_a_sweep_by_a_metric_shows_it_in_the_table_the_line_and_the_report(command, tmp_path):
    by = sets("metrics=log_loss", "select_by=log_loss")
    answer = command(*GRID, *by)
    assert answer.code == 0
    assert "best by validation log_loss: mu = " in answer.out
    table = json.loads(command(*GRID, *by, "--no-run", "--format", "json").out)
    assert {cell["measure"] for cell in table["cells"]} == {"val_log_loss"}
    shown = [cell["mean"] for cell in table["cells"]]
    assert table["best"]["val_log_loss"].startswith(f"{min(shown):.4f}")
    page = (tmp_path / "sweeps" / "digits" / "report.html").read_text()
    assert "Validation log loss over settings" in page


def test_the_command_for_the_best_runs_it_again(command, tmp_path):
    command(*GRID, "--out", "mine")
    assert command("run", "mine/best.toml", "--seeds", 2, "--out", "again").code == 0
    again = json.loads((tmp_path / "again" / "seed-1" / "summary.json").read_text())
    assert load_config(str(tmp_path / "mine" / "best.toml")).seed == 0
    known = [each.test_accuracy for each in Store(tmp_path / "mine").summaries() if each.seed == 1]
    assert again["test_accuracy"] in known


def test_the_same_command_continues_and_more_values_run_only_themselves(command, tmp_path):
    first = command(*GRID, "--out", "mine")
    again = command(*GRID, "--out", "mine")
    assert (again.out, again.err) == (first.out, "")
    more = [word.replace("0.01,0.1", "0.01,0.1,0.2") for word in GRID]
    answer = command(*more, "--out", "mine")
    assert "4 of 4 runs" in answer.err
    assert len(Store(tmp_path / "mine").summaries()) == 12


def test_nothing_runs_where_only_the_table_is_wanted(command, tmp_path):
    answer = command(*GRID, "--no-run")
    assert answer.code == 0
    assert "missing: 8 runs" in answer.err
    assert list(tmp_path.iterdir()) == []


def test_a_table_for_programs_names_the_best(command):
    command(*GRID)
    table = json.loads(command(*GRID, "--no-run", "--format", "json").out)
    assert len(table["cells"]) == 4
    assert {cell["n"] for cell in table["cells"]} == {2}
    assert table["best"]["setting"].startswith("mu = ")
    rows = [*csv.DictReader(command(*GRID, "--no-run", "--format", "csv").out.splitlines())]
    assert {row["training.lr"] for row in rows} == {"lr = 0.01", "lr = 0.1"}


def test_a_changed_config_is_another_experiment(command, tmp_path):
    """Results of the old one are neither shown nor chosen."""
    command(*GRID, "--out", "mine")
    other = [word.replace("epochs=1", "epochs=2") for word in GRID]
    table = json.loads(command(*other, "--out", "mine", "--no-run", "--format", "json").out)
    assert table["best"] is None
    assert {cell["n"] for cell in table["cells"]} == {0}


def test_a_sweep_killed_at_any_moment_ends_as_if_it_had_not(tmp_path):
    """Its name is that of its folder."""
    whole, results = tmp_path / "whole" / "mine", tmp_path / "killed" / "mine"
    assert Process(*GRID, "--out", str(whole), said=tmp_path / "whole.txt").end() == 0
    command, wait = (*GRID, "--out", str(results)), random.Random(9)
    for attempt in range(3):
        Process(*command, said=tmp_path / "said.txt").end(
            signal.SIGKILL, wait.uniform(0.2, 1 + attempt)
        )
    last = Process(*command, said=tmp_path / "said.txt")
    assert last.end() == 0, last.said.read_text()
    assert len(found(results)) == 8
    assert timeless(results) == timeless(whole)
    assert (results / "best.toml").read_text() == (whole / "best.toml").read_text()


@pytest.mark.parametrize(
    ("words", "problem"),
    [(sets("lr=0.1"), "nothing to sweep"), (sets("lr=0.1,-1"), "lr must be positive"),
     (sets("method.mou=1,2"), "mou"), (sets("lr=0.1..1"), "--search"),
     (sets("lr=0.1,,2"), "missing"), (sets("seed=1,2"), "--seeds"), ([], "nothing to sweep"),
     ([*sets("lr=0.1,1"), "--search", "2", "--jobs", "2"], "--jobs"),
     ([*sets("lr=0.1,1"), "--budget", "soon"], "--budget"),
     ([*sets("lr=0.1,1"), "--out", "file"], "file")],
)  # fmt: skip
def test_bad_input_is_one_line_and_nothing_is_written(command, tmp_path, words, problem):
    (tmp_path / "file").write_text("not a folder")
    before = contents(tmp_path)
    answer = command("sweep", "digits", *SHORT, *words)
    assert answer.code == 2
    assert answer.err.startswith("fedfm: ")
    assert problem in answer.err
    assert answer.err.count("\n") == 1
    assert contents(tmp_path) == before


def test_a_setting_that_fails_is_named_and_the_others_are_shown(command):
    answer = command("sweep", "digits", *SHORT, *sets("lr=0.1,1e30"))
    assert answer.code == 1
    assert "failed, for example lr = 1e30" in answer.err
    assert "best by validation: lr = 0.1" in answer.out


def test_a_search_finds_its_trials_again(command, tmp_path: Path):
    pytest.importorskip("optuna")
    words = ("sweep", "digits", *SHORT, *sets("method.mu=0.001..1", "lr=0.01..0.5"))
    first = command(*words, "--search", 3)
    assert first.code == 0
    assert "best by validation: mu = 0." in first.out
    again = command(*words, "--search", 3)
    assert (again.out, again.err) == (first.out, "")
    assert command(*words, "--search", 3, "--no-run").out.startswith(first.out.partition("best")[0])
    assert command(*words, "--search", 4).code == 0
    assert len(Store(tmp_path / "sweeps" / "digits").summaries()) == 4
