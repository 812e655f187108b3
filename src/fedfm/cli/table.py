"""`fedfm table`: the paper's tables and figures, run as far as there is time."""

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.table import Table

from fedfm.cli.grid import conclude, engine_for, run_all
from fedfm.cli.options import Collect, Overrides, Quick, Results, RunFirst, Time, With
from fedfm.core.errors import require
from fedfm.grid.budget import Budget
from fedfm.grid.jobs import Job, adopt, all_jobs, current, missing
from fedfm.grid.recipe import Recipe
from fedfm.grid.settings import settings_in
from fedfm.grid.store import Store, Summary
from fedfm.paper.catalogue import load_recipe, recipe_names
from fedfm.paper.partition_pictures import draw_partitions
from fedfm.run.console import log_to_console, print_table

TableFormat = Annotated[
    Literal["text", "markdown", "latex", "csv", "json"],
    typer.Option("--format", help="How the table is written."),
]
UNTRAINED = ("partitions", "clients")
"""Outputs that are drawn at once, without runs."""
EngineName = Annotated[Literal["local", "ray"], typer.Option(help="Where the cells run.")]


def table(
    name: Annotated[
        str | None,
        typer.Argument(help="A recipe, or a TOML file with one; without it, all are listed."),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="Only cells with such a label. Repeatable."),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="How many seeds; by default as the recipe says, 3.")
    ] = None,
    budget: Time = None,
    jobs: Annotated[int, typer.Option(min=1, help="So many cells at a time, in processes.")] = 1,
    quick: Quick = False,
    overrides: Overrides = None,
    settings: With = None,
    results: Results = Path("results"),
    collect: Collect = None,
    engine: EngineName = "local",
    ray_address: Annotated[
        str | None, typer.Option(help="Of a Ray cluster; without it, one of this machine alone.")
    ] = None,
    format: TableFormat = "text",
    run: RunFirst = True,
) -> None:
    """Run what a table or figure of the paper still needs, and print it.

    Everything is kept: interrupt or kill it at any moment, and the same command goes on.
    """
    time = Budget.parse(budget, whole=collect is not None)
    changes = [*settings_in(settings or []), *(overrides or [])]
    require(engine == "ray" or ray_address is None, "--ray-address goes with --engine ray")
    log_to_console()
    if name is None:
        list_recipes(Store(results), changes, format)
        return
    recipe, store = load_recipe(name), Store(results)
    if recipe.output in UNTRAINED:
        show_pictures(pictures(recipe, quick, changes, results), format)
        return
    wanted = all_jobs(recipe, quick, range(seeds or recipe.seeds), changes, only or [])
    adopt(wanted, store)
    grid = None
    if run and (left := missing(wanted, store.summaries())):
        chosen = engine_for(engine, jobs, ray_address, results, time)
        grid = run_all([left], results, time, chosen, collect)
    show(recipe, quick, wanted, store, format)
    conclude(grid, missing(wanted, store.summaries()))


def show(recipe: Recipe, quick: bool, jobs: Sequence[Job], store: Store, format: str) -> None:
    """Print the table of what there is."""
    from fedfm.report.tables.build import build, render

    laid_out = build(recipe, current(jobs, store.summaries()), quick)
    print(render(laid_out, format))
    if recipe.output in ("curve", "features"):
        from fedfm.paper.pictures import draw

        if picture := draw(recipe, laid_out, store.folder, quick):
            print(f"picture in {picture}", file=sys.stderr)
    if recipe.output == "choice":
        from fedfm.report.tables.choice import write_choice

        if path := write_choice(recipe, laid_out, store.folder):
            print(f"choice in {path}; take it over with --with {path}", file=sys.stderr)


def pictures(
    recipe: Recipe, quick: bool, changes: Sequence[str], results: Path
) -> Iterable[dict[str, Any]]:
    """Draw what needs no runs of the grid: partitions, or the clients' own models."""
    if recipe.output == "partitions":
        return draw_partitions(recipe, quick, changes, results / recipe.name)
    from fedfm.paper.pictures import draw_local_models

    return draw_local_models(recipe, quick, changes, results)


def show_pictures(rows: Iterable[dict[str, Any]], format: str) -> None:
    """Say what was drawn, and where it is."""
    require(format in ("text", "json"), "pictures are listed as text or json")
    found = list(rows)
    if format == "json":
        print(json.dumps(found))
        return
    listing = Table(*found[0])
    for row in found:
        listing.add_row(*map(str, row.values()))
    print_table(listing)


def list_recipes(store: Store, changes: Sequence[str], format: str) -> None:
    """Every recipe, and how much of it has been run with these settings."""
    there = store.summaries()
    rows = [progress_of(load_recipe(name), there, changes) for name in recipe_names()]
    if format == "json":
        print(json.dumps(rows))
        return
    require(format == "text", "the list of recipes is text or json")
    listing = Table("recipe", "paper", "what it is", "runs", "--quick", title_justify="left")
    for row in rows:
        listing.add_row(*(str(row[key]) for key in ("name", "paper", "title", "runs", "quick")))
    print_table(listing)


def progress_of(recipe: Recipe, there: Sequence[Summary], changes: Sequence[str]) -> dict[str, str]:
    """A recipe in a line: its name, title, and how many of its runs there are."""
    row = {"name": recipe.name, "paper": recipe.paper, "title": recipe.title}
    if recipe.output in UNTRAINED:
        return row | {"runs": "", "quick": ""}
    for column, quick in (("runs", False), ("quick", True)):
        jobs = all_jobs(recipe, quick, range(recipe.seeds), changes, ())
        runs, left = (sum(len(job.seeds) for job in some) for some in (jobs, missing(jobs, there)))
        row[column] = f"{runs - left} of {runs}"
    return row
