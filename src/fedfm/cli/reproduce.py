"""`fedfm reproduce`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedfm.cli.grid import exit_if_incomplete, make_engine, run_stages
from fedfm.cli.options import Collect, Overrides, Quick, Results, RunFirst, Time, With
from fedfm.core.errors import require

if TYPE_CHECKING:
    from fedfm.grid.jobs import Job
    from fedfm.grid.store import Store
    from fedfm.paper.plan import Plan


def reproduce(
    budget: Time = None,
    quick: Quick = False,
    overrides: Overrides = None,
    settings: With = None,
    results: Results = Path("results"),
    collect: Collect = None,
    document: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a Markdown document about the results."),
    ] = None,
    readme: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Update the headline table in this README."),
    ] = None,
    run: RunFirst = True,
) -> None:
    """Reproduce the paper step by step, as far as the time allows, and write down the results.

    The most important steps come first. The same command continues an unfinished reproduction.
    """
    from fedfm.grid.budget import Budget
    from fedfm.grid.settings import settings_in
    from fedfm.grid.store import Store
    from fedfm.paper.plan import adopted, load_plan
    from fedfm.run.console import log_to_console

    require(document is not None or readme is None, "--readme needs --document")
    require(not (quick and document), "--quick gives no results for a document")
    time = Budget.parse(budget, whole=collect is not None)
    changes = [*settings_in(settings or []), *(overrides or [])]
    log_to_console()
    plan, store = load_plan(), Store(results)
    grid, left = None, []
    if run:
        stages = list(_stages(plan, quick, changes, results))
        engine = make_engine("local", 1, None, results, time)
        grid = run_stages(_missing(stages, store), results, time, engine, collect)
        left = [job for jobs in _missing(stages, store) for job in jobs]
    adopted(plan, results, changes, quick)
    if document:
        files = [word for path in settings or [] for word in ("--with", str(path))]
        words = [*files, *(word for change in overrides or [] for word in ("--set", change))]
        _write_documents(document, readme, results, changes, words)
    exit_if_incomplete(grid, left)


def _missing(stages: Sequence[Sequence[Job]], store: Store) -> list[list[Job]]:
    """Return the jobs of every stage that have no results yet."""
    from fedfm.grid.jobs import missing

    summaries = store.summaries()
    return [missing(jobs, summaries) for jobs in stages]


def _stages(plan: Plan, quick: bool, changes: Sequence[str], results: Path) -> Iterator[list[Job]]:
    """Yield the jobs of every step that can run; steps on tuned methods wait for the tuning."""
    from fedfm.config import override
    from fedfm.grid.jobs import adopt
    from fedfm.grid.store import Store

    chosen = any(override(change)[0][0] == "method" for change in changes)
    for number, step in enumerate(plan.steps, 1):
        if step.tuned and not chosen:
            choice = results / "tune" / "chosen.toml"
            message = f"step {number}, {step.recipe}, needs tuned settings: give --with {choice}"
            print(message, file=sys.stderr)
            continue
        jobs = step.jobs(quick, step.seeds, changes)
        adopt(jobs, Store(results))
        yield jobs


def _write_documents(
    path: Path, readme: Path | None, results: Path, changes: Sequence[str], words: Sequence[str]
) -> None:
    """Write the document with its pictures, and the README's headline; print where they are."""
    from fedfm.paper.document import document, write
    from fedfm.paper.headline import write_headline

    content = document(path, results, changes, words)
    for file in write(content):
        print(f"wrote {file}")
    if readme:
        done = write_headline(content, readme)
        print(f"wrote the headline in {readme}" if done else f"no headline for {readme} yet")
