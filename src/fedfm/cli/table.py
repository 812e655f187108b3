"""`fedfm table`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from fedfm.cli.options import Collect, Overrides, Quick, Results, RunFirst, TableFormat, Time, With
from fedfm.cli.shared_grid import count_runs, exit_if_incomplete, make_job_pool, run_stages
from fedfm.core.errors import require

if TYPE_CHECKING:
    from fedfm.grid.jobs import Job
    from fedfm.grid.recipe import Recipe
    from fedfm.grid.runner import Grid
    from fedfm.grid.store import Store, Summary
    from fedfm.report.tables.table import Table

EngineName = Annotated[
    Literal["local", "ray"], typer.Option(help="Where to run: on this machine, or on Ray.")
]


def table(
    name: Annotated[
        str | None,
        typer.Argument(help="A recipe, or a TOML file with one. Without it, list all recipes."),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="Only cells with TEXT in a label. Repeatable."),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Number of seeds.", show_default="the recipe's")
    ] = None,
    budget: Time = None,
    jobs: Annotated[int, typer.Option(min=1, help="Number of processes to run cells in.")] = 1,
    quick: Quick = False,
    overrides: Overrides = None,
    settings: With = None,
    results: Results = Path("results"),
    collect: Collect = None,
    engine: EngineName = "local",
    ray_address: Annotated[
        str | None,
        typer.Option(help="Address of a Ray cluster.", show_default="a new one on this machine"),
    ] = None,
    measure: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Show this number, for example test_macro_f1 or worst_accuracy. Repeatable.",
            show_default="the recipe's",
        ),
    ] = None,
    format: TableFormat = "text",
    run: RunFirst = True,
) -> None:
    """Run what a table or figure of the paper still needs, and print it.

    Every result is kept. Stop the command at any time: the same command continues.
    """
    from fedfm.grid.budget import Budget
    from fedfm.grid.jobs import find_missing, plan_jobs
    from fedfm.grid.store import Store
    from fedfm.paper.catalogue import load_recipe, read_settings
    from fedfm.paper.comparison.tuning import use_choices
    from fedfm.paper.stages import UNTRAINED, draw_untrained
    from fedfm.run.console import log_to_console

    time = Budget.parse(budget, whole=collect is not None)
    changes = [*read_settings(settings or []), *(overrides or [])]
    require(engine == "ray" or ray_address is None, "--ray-address needs --engine ray")
    log_to_console()
    if name is None:
        _list_recipes(Store(results), changes, format)
        return
    recipe, store = _set_measures(load_recipe(name), measure), Store(results)
    if recipe.output in UNTRAINED:
        require(run, f"recipe {name} is drawn anew each time: leave out --no-run")
        _list_pictures(draw_untrained(recipe, quick, changes, results), format)
        return
    tuned = use_choices(recipe, store.summaries(), changes, quick)

    def plan(recipe: Recipe) -> list[Job]:
        return plan_jobs(recipe, quick, range(seeds or recipe.seeds), changes, only or [])

    def run_missing(wanted: list[Job]) -> Grid | None:
        ready = tuned.select_ready(wanted)
        left = find_missing(ready, store.summaries()) if run else []
        if not left:
            return None
        pool = make_job_pool(engine, jobs, ray_address, results, time)
        return run_stages([left], count_runs([left]), results, time, pool, collect)

    recipe, wanted = tuned.recipe, plan(tuned.recipe)
    if waiting := ", ".join(tuned.list_waiting(wanted)):
        print(f"fedfm table {recipe.tuned} must first choose settings: {waiting}", file=sys.stderr)
    grid = run_missing(wanted)
    if extended := _extend_range(recipe, quick, wanted, store):
        recipe, wanted = extended, plan(extended)
        grid = run_missing(wanted) or grid
    content = _print_table(recipe, quick, wanted, store, format)
    if run:
        _write_files(recipe, content, store.folder, quick)
    exit_if_incomplete(grid, find_missing(wanted, store.summaries()))


def _set_measures(recipe: Recipe, measures: Sequence[str] | None) -> Recipe:
    """Return the recipe with other measures, if any are given."""
    from dataclasses import replace

    from fedfm.report.tables.statistics import get_table_metric

    names = tuple(get_table_metric(name).name for name in measures or recipe.measures)
    return replace(recipe, measures=names)


def _extend_range(recipe: Recipe, quick: bool, jobs: Sequence[Job], store: Store) -> Recipe | None:
    """Return a choice with the values beyond its range that it needs; None if it needs none."""
    from fedfm.grid.jobs import select_current
    from fedfm.report.tables.build import build_table
    from fedfm.report.tables.tuned_settings import extend_choice

    if quick or recipe.output != "choice":
        return None
    table = build_table(recipe, select_current(jobs, store.summaries()))
    extended = extend_choice(recipe, table)
    return extended if extended.axes != recipe.axes else None


def _print_table(
    recipe: Recipe, quick: bool, jobs: Sequence[Job], store: Store, format: str
) -> Table:
    """Print the table of the results so far, and return it."""
    from fedfm.grid.jobs import select_current
    from fedfm.report.tables.build import build_table
    from fedfm.report.tables.formats import render_table

    content = build_table(recipe, select_current(jobs, store.summaries()), quick)
    print(render_table(content, format))
    return content


def _write_files(recipe: Recipe, content: Table, results: Path, quick: bool) -> None:
    """Write the picture or the choice that goes with the table."""
    from fedfm.paper.pictures import draw_picture
    from fedfm.report.tables.tuned_settings import write_choice

    if recipe.output == "choice" and (path := write_choice(recipe, content, results)):
        print(f"choice in {path}; use it with --with {path}", file=sys.stderr)
    drawn = recipe.output in ("curve", "features")
    if drawn and (picture := draw_picture(recipe, content, results, quick)):
        print(f"picture in {picture}", file=sys.stderr)


def _list_pictures(pictures: Iterable[dict[str, Any]], format: str) -> None:
    require(format in ("text", "json"), "the list of pictures is text or json")
    rows = list(pictures)
    _print_rows(rows, [*rows[0]], [*rows[0]], format)


def _list_recipes(store: Store, changes: Sequence[str], format: str) -> None:
    """List every recipe, and how many of its runs exist with these settings."""
    from fedfm.paper.catalogue import list_recipe_names, load_recipe

    require(format in ("text", "json"), "the list of recipes is text or json")
    summaries = store.summaries()
    rows = [_count_runs(load_recipe(name), summaries, changes) for name in list_recipe_names()]
    heads = ["recipe", "paper", "what it is", "runs", "--quick"]
    _print_rows(rows, heads, ["name", "paper", "title", "runs", "quick"], format)


def _print_rows(
    rows: list[dict[str, Any]], heads: Sequence[str], keys: Sequence[str], format: str
) -> None:
    from rich.table import Table as Listing

    from fedfm.run.console import print_table

    if format == "json":
        print(json.dumps(rows))
        return
    listing = Listing(*heads)
    for row in rows:
        listing.add_row(*(str(row[key]) for key in keys))
    print_table(listing)


def _count_runs(
    recipe: Recipe, summaries: Sequence[Summary], changes: Sequence[str]
) -> dict[str, Any]:
    """Return a recipe's name, place in the paper, title, and how many of its runs exist."""
    from fedfm.grid.jobs import find_missing, plan_jobs
    from fedfm.paper.comparison.tuning import use_choices
    from fedfm.paper.stages import UNTRAINED

    row = {"name": recipe.name, "paper": recipe.paper, "title": recipe.title}
    if recipe.output in UNTRAINED:
        return row | {"runs": "", "quick": ""}
    for column, quick in (("runs", False), ("quick", True)):
        tuned = use_choices(recipe, summaries, changes, quick)
        jobs = plan_jobs(tuned.recipe, quick, range(recipe.seeds), changes, ())
        left = find_missing(jobs, summaries)
        total, absent = (sum(len(job.seeds) for job in some) for some in (jobs, left))
        row[column] = f"{total - absent} of {total}"
    return row
