"""`fedfm sweep`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedfm.cli.grid import count_runs, exit_if_incomplete, make_workers, run_stages
from fedfm.cli.options import RunFirst, Source, TableFormat, Time
from fedfm.core.errors import require

if TYPE_CHECKING:
    from fedfm.grid.budget import Budget
    from fedfm.grid.jobs import Job
    from fedfm.grid.recipe import Cell, Recipe
    from fedfm.grid.runner import Grid
    from fedfm.grid.search import Search
    from fedfm.grid.store import Store, Summary
    from fedfm.grid.sweep import Sweep


def sweep(
    source: Source,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUES",
            help="A setting with one value, several values separated by commas, or with --search "
            "a range: method.strength=1,10,50 or training.lr=0.001..0.1. Repeatable.",
        ),
    ] = None,
    seeds: Annotated[
        int,
        typer.Option(min=1, help="Number of seeds, from the config's seed on; trained together."),
    ] = 1,
    search: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Let Optuna propose N settings in place of a grid."),
    ] = None,
    budget: Time = None,
    jobs: Annotated[int, typer.Option(min=1, help="Number of processes to run cells in.")] = 1,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the results.", show_default="sweeps/CONFIG")
    ] = None,
    format: TableFormat = "text",
    run: RunFirst = True,
) -> None:
    """Run a config with several values of its settings, and find the best ones by validation.

    Every result is kept. Stop the command at any time: the same command continues.
    """
    from fedfm.grid.budget import Budget
    from fedfm.grid.jobs import find_missing
    from fedfm.grid.search import Search
    from fedfm.grid.store import Store
    from fedfm.grid.sweep import Axis, Sweep
    from fedfm.run.console import log_to_console
    from fedfm.run.folder import check_writable

    require(search is None or jobs == 1, "--search runs one trial after another: leave out --jobs")
    time, folder = Budget.parse(budget), out or Path("sweeps") / Path(source).stem
    log_to_console()
    axes = tuple(Axis.parse(text) for text in settings or [])
    swept, store = Sweep(folder.resolve().name, source, axes, seeds), Store(folder)
    searched = Search(swept, search, store) if search else None
    cells = [] if searched else swept.make_grid()
    require(not folder.is_file(), f"{folder} is a file; choose another --out")
    check_writable(folder)
    grid = _run(swept, cells, searched, store, time, jobs) if run else None
    if searched:
        if not run:
            searched.replay()
        cells = searched.cells
    planned = swept.plan(cells)
    _show(swept.make_recipe(cells), planned, store, format, write=run)
    exit_if_incomplete(grid, find_missing(planned, store.summaries()))


def _run(
    sweep: Sweep,
    cells: Sequence[Cell],
    search: Search | None,
    store: Store,
    budget: Budget,
    jobs: int,
) -> Grid | None:
    """Run the cells that have no results, or the trials of a search."""
    from fedfm.grid.jobs import find_missing

    workers = make_workers("local", jobs, None, store.folder, budget)
    if search:
        runs = search.trials * sweep.seeds
        return run_stages(search.propose(), runs, store.folder, budget, workers, None)
    left = find_missing(sweep.plan(cells), store.summaries())
    return run_stages([left], count_runs([left]), store.folder, budget, workers, None)


def _show(recipe: Recipe, jobs: Sequence[Job], store: Store, format: str, write: bool) -> None:
    """Print the table and the best setting; write its config and the report."""
    from fedfm.grid.jobs import select_current
    from fedfm.grid.sweep import find_best, select_metric
    from fedfm.metrics import Accuracy
    from fedfm.report.tables.build import build_table
    from fedfm.report.tables.formats import render_table

    digests = {job.digest for job in jobs}
    summaries = [s for s in select_current(jobs, store.summaries()) if s.digest in digests]
    best = find_best(jobs, summaries)
    text = render_table(build_table(recipe, summaries), format)
    words = _describe_best(best, summaries) if best else {}
    print(_add_to_json(text, words) if format == "json" else text)
    if not best:
        return
    stream = sys.stdout if format == "text" else sys.stderr
    metric = select_metric(best.config)
    by = "" if metric == Accuracy.name else f" {metric}"
    validation, test = (words[f"{split}_{metric}"] for split in ("val", "test"))
    print(f"best by validation{by}: {words['setting']}", file=stream)
    print(f"validation {validation}, test {test}", file=stream)
    if write:
        _write_files(best, store.folder, stream)


def _describe_best(best: Job, summaries: Sequence[Summary]) -> dict[str, Any]:
    """Return the setting, and over seeds the metric by which it was chosen."""
    from fedfm.grid.sweep import select_metric
    from fedfm.report.tables.statistics import compute_deviation, get_measure

    words: dict[str, Any] = {"setting": ", ".join(best.labels[0].values()), "digest": best.digest}
    runs = {s.seed: s for s in summaries if s.digest == best.digest}
    for split in ("val", "test"):
        measure = get_measure(f"{split}_{select_metric(best.config)}")
        values = [value for run in runs.values() if (value := measure.of(run)) is not None]
        mean, deviation = sum(values) / len(values), compute_deviation(values)
        words[measure.name] = measure.text(mean) + measure.spread(deviation) + measure.unit
    return words


def _add_to_json(text: str, best: dict[str, Any]) -> str:
    return json.dumps(json.loads(text) | {"best": best or None}, indent=2)


def _write_files(best: Job, folder: Path, stream: Any) -> None:
    """Write the best config and a report of all runs; say how to run the best again."""
    import tomli_w

    from fedfm.core.checkpoint import write_atomically
    from fedfm.report.html import write_report

    config = folder / "best.toml"
    write_atomically(config, tomli_w.dumps(best.config.as_toml()).encode())
    seeds = f" --seeds {len(best.seeds)}" if len(best.seeds) > 1 else ""
    print(f"run it again: fedfm run {config}{seeds}", file=stream)
    written = write_report([folder], folder / "report.html")
    print(f"report in {written.path}", file=stream)
