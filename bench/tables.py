"""Tables, exports and curves over many runs: seconds, and the most memory that the process had."""

import json
import random
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from fedfm.grid.export import export
from fedfm.grid.recipe import Cell, Recipe, expand_cells
from fedfm.grid.store import Store, Summary
from fedfm.paper.catalogue import load_recipe
from fedfm.report.curves import collect_rounds, draw_against_traffic
from fedfm.report.tables.build import build_table
from fedfm.report.tables.formats import FORMATS, render_table

RUNS, ROUNDS = 500, 100


def recipe_for_many() -> tuple[Recipe, int]:
    """The main table, with so many seeds that it has at least `RUNS` runs."""
    recipe = load_recipe("main")
    seeds = -(-RUNS // len(list(expand_cells(recipe))))
    return replace(recipe, seeds=seeds), seeds


def write_run(store: Store, recipe: Recipe, cell: Cell, seed: int) -> Summary:
    """A finished run with made-up accuracies, as a folder, and its summary."""
    chance = random.Random(f"{cell.title} {seed}")
    accuracies = [0.7 - 0.6 * 0.95**n + chance.gauss(0, 0.01) for n in range(1, ROUNDS + 1)]
    records = [round_record(n, accuracy) for n, accuracy in enumerate(accuracies, 1)]
    config = cell.resolved.with_seed(seed).as_toml()
    summary = Summary(
        config=config,
        seed=seed,
        method=next(iter(config["method"])),
        best_round=ROUNDS,
        val_accuracy=accuracies[-1],
        test_accuracy=accuracies[-1],
        rounds=ROUNDS,
        totals={key: sum(each[key] for each in records) for key in ("floats_up", "floats_down")},
        folder=f"runs/{cell.title.replace(' / ', '-')}-{seed}",
        recipe=recipe.name,
        cell=cell.labels,
        finished="2026-01-01T00:00:00",
    )
    folder = store.folder / summary.folder
    folder.mkdir(parents=True)
    (folder / "rounds.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records))
    return summary


def round_record(number: int, accuracy: float) -> dict[str, float]:
    traffic = {f"{unit}_{way}": 10**8 for unit in ("floats", "bytes") for way in ("up", "down")}
    measured = {"val_accuracy": accuracy, "test_accuracy": accuracy, "train_loss": 1 / number}
    return {"round": number, **measured, "seconds": 1.0, **traffic, "handshakes": 1, "failed": 0}


def peak() -> float:
    """The most memory that this process ever had, in MiB."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20


def main() -> None:
    """Time each step on its own, reading the results anew."""
    recipe, seeds = recipe_for_many()
    with tempfile.TemporaryDirectory() as name:
        store = Store(Path(name))
        store.append(
            write_run(store, recipe, c, s) for c in expand_cells(recipe) for s in range(seeds)
        )
        Console(width=110).print(timed(steps(recipe, store), len(store.summaries())))


def steps(recipe: Recipe, store: Store) -> dict[str, Callable[[], object]]:
    """What is timed."""

    def table(format: str) -> str:
        return render_table(build_table(recipe, store.summaries()), format)

    def picture() -> Path:
        runs = collect_rounds(build_table(recipe, store.summaries()), store.folder)
        return draw_against_traffic(runs, recipe.title, store.folder / "rounds.png")

    return {
        **{f"table as {format}": partial(table, format) for format in FORMATS},
        "export of runs and rounds as CSV": partial(
            export, store, Path(store.folder, "a.csv"), True
        ),
        "picture of all rounds": picture,
    }


def timed(steps: dict[str, Callable[[], object]], runs: int) -> Table:
    """The seconds of every step, and the peak after it."""
    table = Table(
        title=f"{runs} runs of {ROUNDS} rounds; {peak():.0f} MiB before", title_justify="left"
    )
    for heading in ("what", "seconds", "peak MiB so far"):
        table.add_column(heading, justify="left" if heading == "what" else "right")
    for what, step in steps.items():
        start = time.perf_counter()
        step()
        table.add_row(what, f"{time.perf_counter() - start:.2f}", f"{peak():.0f}")
    return table


if __name__ == "__main__":
    main()
