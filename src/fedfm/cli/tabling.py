"""`fedfm table` and `fedfm merge`: the paper's tables and figures, run as far as there is time."""

import json
import logging
import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.logging import RichHandler
from rich.table import Table

from fedfm.cli.display import print_table
from fedfm.cli.options import Overrides
from fedfm.core.errors import require
from fedfm.experiments.budget import Budget
from fedfm.experiments.engines import Engine, Here, Processes
from fedfm.experiments.grid import Grid
from fedfm.experiments.jobs import Job, adopt, all_jobs, current, missing
from fedfm.experiments.merging import merge as merge_results
from fedfm.experiments.partition_pictures import draw_partitions
from fedfm.experiments.progress import shown
from fedfm.experiments.recipe import Recipe, load_recipe, recipe_names
from fedfm.experiments.store import Store

NAMED = 8
"""So many missing cells are named one by one."""
Results = Annotated[Path, typer.Option(help="The folder of the results.")]
TableFormat = Annotated[
    Literal["text", "markdown", "latex", "csv", "json"],
    typer.Option("--format", help="How the table is written."),
]
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
    budget: Annotated[
        str | None, typer.Option(metavar="TIME", help="Stop in time, e.g. 25m or 1h30m.")
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="So many cells at a time, in processes.")] = 1,
    quick: Annotated[
        bool, typer.Option("--quick", help="Reduced runs on digits: they show that it works.")
    ] = False,
    overrides: Overrides = None,
    results: Results = Path("results"),
    engine: EngineName = "local",
    ray_address: Annotated[
        str | None, typer.Option(help="Of a Ray cluster; without it, one of this machine alone.")
    ] = None,
    format: TableFormat = "text",
    run: Annotated[bool, typer.Option("--run/--no-run", help="Run what is missing first.")] = True,
) -> None:
    """Run what a table or figure of the paper still needs, and print it.

    Everything is kept: interrupt or kill it at any moment, and the same command goes on.
    """
    time, changes = Budget.parse(budget), overrides or []
    require(engine == "ray" or ray_address is None, "--ray-address goes with --engine ray")
    log()
    if name is None:
        list_recipes(Store(results), format)
        return
    recipe = load_recipe(name)
    if recipe.output == "partitions":
        show_pictures(draw_partitions(recipe, quick, changes, results / recipe.name), format)
        return
    if recipe.output == "clients":
        from fedfm.experiments.pictures import draw_local_models

        show_pictures(draw_local_models(recipe, quick, changes, results), format)
        return
    store = Store(results)
    wanted = all_jobs(recipe, quick, range(seeds or recipe.seeds), changes, only or [])
    adopt(wanted, store)
    grid = None
    if run and (left := missing(wanted, store)):
        grid = run_all(left, results, time, engine_for(engine, jobs, ray_address, results, time))
    show(recipe, quick, wanted, store, format)
    conclude(grid, missing(wanted, store))


def engine_for(
    name: str, jobs: int, ray_address: str | None, results: Path, budget: Budget
) -> Engine:
    """What the user asked for."""
    if name == "ray":
        from fedfm.experiments.ray_engine import OnRay

        return OnRay(results, budget, ray_address)
    return Here(results, budget) if jobs == 1 else Processes(results, budget, jobs)


def run_all(jobs: Sequence[Job], results: Path, budget: Budget, engine: Engine) -> Grid:
    """Run jobs with a display."""
    try:
        with shown(sum(len(job.seeds) for job in jobs), budget) as display:
            grid = Grid(results, budget, engine, display)
            grid.run(jobs)
            return grid
    except KeyboardInterrupt as interrupt:
        print("fedfm: interrupted; the same command goes on", file=sys.stderr)
        raise typer.Exit(130) from interrupt
    finally:
        engine.close()


def show(recipe: Recipe, quick: bool, jobs: Sequence[Job], store: Store, format: str) -> None:
    """Print the table of what there is."""
    from fedfm.experiments.tables import build, render

    laid_out = build(recipe, current(jobs, store.summaries()), quick)
    print(render(laid_out, format))
    if recipe.output in ("curve", "features"):
        from fedfm.experiments.pictures import draw

        if picture := draw(recipe, laid_out, store.folder, quick):
            print(f"picture in {picture}", file=sys.stderr)


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


def conclude(grid: Grid | None, left: Sequence[Job]) -> None:
    """Say what is missing, why, and how to get it.

    The exit code is 1 if something failed, and 130 if the user stopped it.
    """
    outcomes = grid.outcomes if grid else []
    problems = {outcome.problem: outcome.job.title for outcome in outcomes if outcome.problem}
    for problem, title in problems.items():
        print(f"fedfm: failed, e.g. {title}: {problem}", file=sys.stderr)
    if left:
        print("\n".join(missing_lines(left)), file=sys.stderr)
    if grid and grid.interrupted:
        raise typer.Exit(130)
    if problems:
        raise typer.Exit(1)


def missing_lines(left: Sequence[Job]) -> Iterator[str]:
    """How many runs are missing, the command that runs them, and some of them by name."""
    runs = sum(len(job.seeds) for job in left)
    cells = "cell" if len(left) == 1 else "cells"
    yield f"missing: {runs} of the runs, in {len(left)} {cells}; this command goes on:"
    yield f"  {the_command()}"
    for job in left[:NAMED]:
        yield f"    {job.title}"
    if len(left) > NAMED:
        yield f"    and {len(left) - NAMED} more"


def the_command() -> str:
    """The command that is running, without --no-run."""
    return shlex.join(["fedfm", *(word for word in sys.argv[1:] if word != "--no-run")])


def list_recipes(store: Store, format: str) -> None:
    """Every recipe, and how much of it has been run."""
    rows = [progress_of(load_recipe(name), store) for name in recipe_names()]
    if format == "json":
        print(json.dumps(rows))
        return
    require(format == "text", "the list of recipes is text or json")
    listing = Table("recipe", "paper", "what it is", "runs", "--quick", title_justify="left")
    for row in rows:
        listing.add_row(*(str(row[key]) for key in ("name", "paper", "title", "runs", "quick")))
    print_table(listing)


def progress_of(recipe: Recipe, store: Store) -> dict[str, str]:
    """A recipe in a line: its name, title, and how many of its runs there are."""
    row = {"name": recipe.name, "paper": recipe.paper, "title": recipe.title}
    if recipe.output in ("partitions", "clients"):
        return row | {"runs": "", "quick": ""}
    for column, quick in (("runs", False), ("quick", True)):
        jobs = all_jobs(recipe, quick, range(recipe.seeds), (), ())
        runs, left = (sum(len(job.seeds) for job in some) for some in (jobs, missing(jobs, store)))
        row[column] = f"{runs - left} of {runs}"
    return row


def merge(
    folders: Annotated[list[Path], typer.Argument(help="Results of other machines.")],
    into: Annotated[Path, typer.Option(help="The folder that they are added to.")] = Path(
        "results"
    ),
    models: Annotated[bool, typer.Option("--models", help="Copy the best models too.")] = False,
) -> None:
    """Add the results in some folders to those in another; nothing is changed or removed."""
    log()
    for folder in folders:
        done = merge_results(folder, into, models)
        print(f"{folder}: {done.results} results and {done.runs} run folders added to {into}")


def log() -> None:
    """Warnings of the library on standard error."""
    logging.basicConfig(
        format="%(message)s",
        handlers=[RichHandler(console=Console(stderr=True), show_time=False, show_path=False)],
    )
