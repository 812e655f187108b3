"""`fedfm table` and `fedfm merge`, also killed, interrupted and in two processes at once."""

import json
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedfm.grid.identity import digest
from fedfm.grid.recipe import expand_cells
from fedfm.grid.store import POINTS_FILE, Store
from fedfm.paper.catalogue import list_recipe_names, load_recipe
from fedfm.paper.stages import UNTRAINED
from tests.cli.tools import sets, start
from tests.grid.grids import found, timeless
from tests.grid.results import result, store_of

SHORT = sets("executor=stacked", "rounds=3", "epochs=1", "batch_size=32")
ANCHORS = ("table", "anchors", "--quick", "--seeds", "2", *SHORT)
MAIN = ("table", "main", "--quick", "--seeds", "2", *SHORT, "--only", "NIID-2")


class Process:
    """A `fedfm` command in a process of its own."""

    def __init__(self, *arguments: str, said: Path) -> None:
        self.said = said
        self.process = start(*arguments, said=said)

    def end(self, number: int | None = None, after: float = 0.0) -> int | None:
        """Wait for the end, or after some seconds bring it about; the exit code."""
        self.process.join(after if number else 100)
        if number and self.process.is_alive():
            assert self.process.pid is not None
            os.kill(self.process.pid, number)
        self.process.join(60)
        return self.process.exitcode


@pytest.fixture(scope="module")
def whole(tmp_path_factory, compute_once):
    """The results of `MAIN` without interruption, without times."""

    def work() -> Any:
        folder = tmp_path_factory.mktemp("whole")
        process = Process(*MAIN, "--results", str(folder / "results"), said=folder / "said.txt")
        assert process.end() == 0, process.said.read_text()
        return timeless(folder / "results")

    return compute_once("table", work)


# ---- what people see -----------------------------------------------------------------------------


def test_a_table_runs_what_is_missing_and_says_that_it_is_reduced(command):
    first = command(*ANCHORS)
    assert first.code == 0
    assert "FedFM (uniform)" in first.out
    assert "REDUCED (--quick)" in first.out
    assert "FedAvg, seeds 0, 1: done in" in first.err
    assert "6 of 6 runs" in first.err
    again = command(*ANCHORS)
    assert again.out == first.out
    assert again.err == ""
    clients = command(*ANCHORS, "--measure", "worst_accuracy", "--measure", "test_accuracy")
    assert "worst client, accuracy (%)" in clients.out
    assert "did you mean 'test_auc'" in command(*ANCHORS, "--measure", "test_aucc").err
    assert len(found(Path("results"))) == 6


def test_without_running_the_missing_cells_are_named_with_the_command(command):
    answer = command("table", "main", "--no-run")
    assert answer.code == 0
    assert (
        "missing: 144 runs in 48 cells; this command continues:\n  fedfm table main\n" in answer.err
    )
    assert "FedAvg / CIFAR-10 / NIID-1, seeds 0, 1, 2\n" in answer.err
    assert "and 40 more" in answer.err
    assert not Path("results").exists()


def read_all(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def results(tmp_path) -> Path:
    """A run for the first cells of every recipe, with measures and points for t-SNE."""
    runs = []
    for name in list_recipe_names():
        for cell in list(expand_cells(load_recipe(name)))[:3]:
            config, measures = cell.resolved.as_toml(), {"nmi": 0.5, "silhouette": 0.1}
            changes = {"config": config, "recipe": name, "measures": measures}
            folder = f"runs/{digest(config)}-0"
            runs.append(result(cell.labels, 0, 70.0, folder=folder, **changes))
    store = store_of(tmp_path / "results", runs)
    points: dict[str, Any] = {
        "features": np.zeros((4, 2)),
        "labels": np.arange(4),
        "classes": list("abcd"),
    }
    for run in runs:
        np.savez(store.folder / run.folder / POINTS_FILE, **points)
    return store.folder


def read_files(folder: Path) -> dict[str, tuple[bytes, int]]:
    """All files and folders below a folder, with what they hold and when they were changed."""
    return {
        str(path): (path.read_bytes() if path.is_file() else b"", path.stat().st_mtime_ns)
        for path in folder.rglob("*")
    }


@pytest.mark.parametrize("name", list_recipe_names())
def test_a_table_without_running_writes_nothing(command, results, name):
    drawn = load_recipe(name).output in UNTRAINED  # these are refused, since nothing is stored
    before = read_files(Path())
    answer = command("table", name, "--no-run", "--results", str(results))
    assert answer.code == (2 if drawn else 0)
    assert bool(answer.out) != drawn
    assert read_files(Path()) == before


@pytest.mark.parametrize("name", ["proto", "lite", "tsne"])
def test_without_running_nothing_is_written(command, name):
    command(*ANCHORS, "--only", "FedAvg")
    before = read_all(Path("results"))
    answer = command("table", name, "--quick", "--no-run", "--format", "json", *SHORT)
    assert answer.code == 0, answer.err
    assert read_all(Path("results")) == before
    cells = json.loads(answer.out)["cells"]
    assert any(cell["labels"]["method"] == "FedAvg" and cell["n"] == 2 for cell in cells) == (
        name != "tsne"
    ), "another recipe's runs are shown, if they were measured"


@pytest.mark.parametrize("format", ["markdown", "latex", "csv", "json"])
def test_other_formats(command, format):
    answer = command("table", "anchors", "--no-run", "--format", format)
    assert answer.code == 0
    assert "uniform" in answer.out
    if format == "json":
        json.loads(answer.out)


def test_all_recipes_are_listed_with_how_much_was_run(command):
    command(*ANCHORS, "--only", "FedAvg")
    answer = command("table")
    assert answer.code == 0
    assert all(name in answer.out for name in list_recipe_names())
    rows = {row["name"]: row for row in json.loads(command("table", "--format", "json").out)}
    assert rows["main"]["runs"] == "0 of 144"
    assert rows["anchors"]["quick"] == "0 of 9", "settings were changed"
    same = json.loads(command("table", *SHORT, "--format", "json").out)
    assert {row["name"]: row["quick"] for row in same}["anchors"] == "2 of 9"


def test_a_setting_that_there_is_not_is_no_empty_table(command):
    answer = command("table", "main", "--quick", *sets("rouds=1"))
    assert answer.code == 2
    assert answer.err.count("unknown key 'rouds'") == 1


def test_partitions_are_drawn(command):
    answer = command("table", "partitions", "--quick", "--format", "json")
    assert answer.code == 0
    rows = json.loads(answer.out)
    assert [row["partition"] for row in rows] == ["NIID-1", "NIID-2", "NIID-3"]
    assert all(Path(row["picture"]).stat().st_size > 1000 for row in rows)


def test_a_budget_that_is_spent_says_what_is_missing(command):
    answer = command(*ANCHORS, "--budget", "0.001s")
    assert answer.code == 0
    assert "missing: 6 runs in 3 cells" in answer.err
    assert command(*ANCHORS, "--budget", "10m").code == 0
    assert len(found(Path("results"))) == 6


def test_a_recipe_of_ones_own_with_a_mistake_still_runs_the_rest(command, caplog):
    Path("mine.toml").write_text(
        'title = "Mine"\nrows = ["method"]\ncolumns = []\n'
        '[axes.method.FedAvg]\nmethod = "fedavg"\n[axes.method.New]\nmethod = "fedavgg"\n'
    )
    answer = command("table", "mine.toml", "--quick", "--seeds", "1", *SHORT)
    assert answer.code == 0
    assert "New is left out: unknown method 'fedavgg': did you mean 'fedavg" in caplog.text
    assert len(found(Path("results"))) == 1


def test_own_data_for_all_cells(command):
    answer = command("table", "anchors", "--set", "data.name=csv", "--set", "data.path=no.csv")
    assert answer.code == 1
    assert "no.csv" in answer.err
    assert "missing: 9 runs in 3 cells" in answer.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("table", "mian"), "did you mean 'main'"),
        (("table", "main", "--only", "nothing"), "no label is like that"),
        (("table", "main", "--budget", "5"), "--budget is like"),
        (("table", "main", "--set", "seed=1"), "--seeds"),
        (("table", "partitions", "--no-run"), "--no-run"),
        (("table", "main", "--ray-address", "x"), "--engine ray"),
        (("table", "--format", "latex"), "text or json"),
        (("merge", "nowhere"), "holds no results"),
    ],
)
def test_mistakes_are_explained(command, arguments, said):
    answer = command(*arguments)
    assert answer.code == 2
    assert said in " ".join(answer.err.split())


def test_merging(command):
    command(*ANCHORS, "--results", "there")
    answer = command("merge", "there", "--into", "here")
    assert answer.out == "there: added 6 results and 6 run folders to here\n"
    assert timeless(Path("here")) == timeless(Path("there"))


# ---- interruptions -------------------------------------------------------------------------------


def test_killed_at_random_moments_it_loses_nothing_and_repeats_nothing(tmp_path, whole):
    chance, kills, results = random.Random(), 0, tmp_path / "results"
    for patience in (0.4, 0.7, 1.0, 1.5, 100.0):
        process = Process(*MAIN, "--results", str(results), said=tmp_path / "said.txt")
        code = process.end(signal.SIGKILL, after=patience * chance.uniform(0.5, 1.0))
        kills += code == -signal.SIGKILL
    assert code == 0, process.said.read_text()
    assert kills > 0
    assert timeless(results) == whole
    rounds = [path.read_text().count("\n") for path in results.glob("runs/*/rounds.jsonl")]
    assert rounds == [3] * 16


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_stops_after_a_round_and_says_how_to_go_on(tmp_path, whole, number):
    arguments = (*MAIN, "--results", str(tmp_path / "results"))
    process = Process(*arguments, said=tmp_path / "said.txt")
    deadline = time.monotonic() + 60
    while not (tmp_path / "results" / "results.jsonl").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert process.end(number) == 130
    said = process.said.read_text()
    assert "missing: " in said
    assert "fedfm table main --quick" in said
    process = Process(*arguments, said=tmp_path / "said.txt")
    assert process.end() == 0
    assert timeless(tmp_path / "results") == whole


def test_two_runners_at_once_share_the_work(tmp_path, whole):
    arguments = (*MAIN, "--results", str(tmp_path / "results"))
    both = [Process(*arguments, said=tmp_path / f"said-{n}.txt") for n in range(2)]
    assert [each.end() for each in both] == [0, 0], both[0].said.read_text()
    assert timeless(tmp_path / "results") == whole
    said = [each.said.read_text() for each in both]
    assert sum(text.count(": done in") for text in said) == 8
    assert len(Store(tmp_path / "results").summaries()) == 16
