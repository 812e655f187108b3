"""`fedfm reproduce`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedfm.cli.grid import count_runs, exit_if_incomplete, make_workers, run_stages
from fedfm.cli.options import Collect, Overrides, Quick, Results, RunFirst, Time, With
from fedfm.core.errors import require

if TYPE_CHECKING:
    from fedfm.grid.jobs import Job
    from fedfm.grid.store import Store
    from fedfm.paper.plan import ReproductionPlan


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
    run: RunFirst = True,
) -> None:
    """Reproduce the paper step by step, as far as the time allows, and write down the results.

    The most important steps come first. The same command continues an unfinished reproduction.
    """
    from fedfm.grid.budget import Budget
    from fedfm.grid.store import Store
    from fedfm.paper.catalogue import read_settings
    from fedfm.paper.plan import load_plan
    from fedfm.run.console import log_to_console

    require(not (quick and document), "--quick gives no results for a document")
    time = Budget.parse(budget, whole=collect is not None)
    changes = [*read_settings(settings or []), *(overrides or [])]
    log_to_console()
    plan, store = load_plan(), Store(results)
    grid, left = None, []
    if run:
        stages = list(_stages(plan, quick, changes, results))
        workers = make_workers("local", 1, None, results, time)
        missing = _missing(stages, store)
        grid = run_stages(missing, count_runs(missing), results, time, workers, collect)
        left = [job for jobs in _missing(stages, store) for job in jobs]
    if document:
        files = [word for path in settings or [] for word in ("--with", str(path))]
        words = [*files, *(word for change in overrides or [] for word in ("--set", change))]
        _write_document(document, results, changes, words)
    exit_if_incomplete(grid, left)


def _missing(stages: Sequence[Sequence[Job]], store: Store) -> list[list[Job]]:
    """Return the jobs of every stage that have no results yet."""
    from fedfm.grid.jobs import find_missing

    summaries = store.summaries()
    return [find_missing(jobs, summaries) for jobs in stages]


def _stages(
    plan: ReproductionPlan, quick: bool, changes: Sequence[str], results: Path
) -> Iterator[list[Job]]:
    """Yield the jobs of every step that can run; steps on tuned methods wait for the tuning."""
    from fedfm.config import override

    chosen = any(override(change)[0][0] == "method" for change in changes)
    for number, step in enumerate(plan.steps, 1):
        if step.tuned and not chosen:
            choice = results / "tune" / "chosen.toml"
            message = f"step {number}, {step.recipe}, needs tuned settings: give --with {choice}"
            print(message, file=sys.stderr)
            continue
        yield step.jobs(quick, step.seeds, changes)


def _write_document(
    path: Path, results: Path, changes: Sequence[str], words: Sequence[str]
) -> None:
    """Write the document with its pictures; print where they are."""
    from fedfm.paper.document import make_document, write_document

    for file in write_document(make_document(path, results, changes, words)):
        print(f"wrote {file}")
