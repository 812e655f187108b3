"""Tables, exports, pictures and the report over 500 runs of 100 rounds: seconds and memory."""

import os
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from bench._shared import make_table, peak_memory, run_alone
from rich.console import Console

from fedfm.grid.export import export
from fedfm.grid.recipe import Recipe, expand_cells
from fedfm.grid.store import Store, Summary, read_summary
from fedfm.paper.catalogue import load_recipe
from fedfm.report.curves import collect_rounds, draw_against_traffic
from fedfm.report.html import write_report
from fedfm.report.tables.build import build_table
from fedfm.report.tables.formats import FORMATS, render_table
from tests.report.runs import write_folder

RUNS = 500
LIMITS = {"seconds": 5.0, "MiB": 500.0}


def write_runs(recipe: Recipe, results: Path) -> list[Summary]:
    """Write the runs of every cell and seed of a recipe."""
    summaries: list[Summary] = []
    for cell in expand_cells(recipe):
        for seed in range(recipe.seeds):
            path = results / "runs" / f"{len(summaries):03}"
            write_folder(path, cell.resolved.with_seed(seed))
            summary = read_summary(path, results)
            summaries.append(replace(summary, recipe=recipe.name, cell=cell.labels))
    return summaries


def list_steps(recipe: Recipe, store: Store) -> dict[str, Callable[[], object]]:
    """Return what is timed; each step reads the results anew."""

    def table(format: str) -> str:
        return render_table(build_table(recipe, store.summaries()), format)

    def picture() -> Path:
        runs = collect_rounds(build_table(recipe, store.summaries()), store.folder)
        return draw_against_traffic(runs, recipe.title, store.folder / "rounds.png")

    return {
        **{f"table as {format}": partial(table, format) for format in FORMATS},
        "export of runs and rounds": partial(export, store, store.folder / "a.csv", True),
        "picture of all rounds": picture,
    }


def make_report(results: Path) -> float:
    """Write the report; return the peak of memory."""
    write_report([results], results / "report.html", "invented")
    return peak_memory()


def time_report(results: Path) -> None:
    """Measure the report in a process of its own, with the start of Python and its imports."""
    began = time.perf_counter()
    memory = run_alone(make_report, results)
    print(f"report of {(results / 'report.html').stat().st_size / 1e6:.1f} MB")
    for name, value in {"seconds": time.perf_counter() - began, "MiB": memory}.items():
        print(f"{value:8.1f} {name} (wanted: below {LIMITS[name]:g})")


def main() -> None:
    """Time every step and the report on the same runs."""
    os.environ["FEDFM_COMMIT"] = "invented"
    main_table = load_recipe("main")
    seeds = -(-RUNS // len(list(expand_cells(main_table))))
    recipe = replace(main_table, seeds=seeds)
    with TemporaryDirectory() as folder:
        store = Store(Path(folder))
        store.append(write_runs(recipe, store.folder))
        title = f"{len(store.summaries())} runs of 100 rounds; {peak_memory():.0f} MiB before"
        table = make_table(title, "what", "seconds", "peak MiB so far")
        for what, step in list_steps(recipe, store).items():
            began = time.perf_counter()
            step()
            table.add_row(what, f"{time.perf_counter() - began:.2f}", f"{peak_memory():.0f}")
        Console(width=110).print(table)
        time_report(store.folder)


if __name__ == "__main__":
    main()
