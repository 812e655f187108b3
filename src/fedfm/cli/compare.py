"""`fedfm compare`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedfm.cli.options import Collect, Overrides, Quick, Results, RunFirst, Time, With
from fedfm.cli.shared_grid import count_runs, exit_if_incomplete, make_job_pool, run_stages
from fedfm.core.errors import plural, require

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedfm.grid.budget import Budget
    from fedfm.grid.jobs import Job
    from fedfm.grid.runner import Grid
    from fedfm.paper.comparison.plan import ComparisonStep


def compare(
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
    """Compare methods of the field under one protocol, step by step, as far as the time allows.

    Settings are chosen on the way. The same command continues an unfinished comparison.
    """
    from fedfm.grid.budget import Budget
    from fedfm.paper.catalogue import read_settings
    from fedfm.paper.comparison.plan import load_steps
    from fedfm.run.console import log_to_console

    require(not (quick and document), "--quick gives no results for a document")
    time = Budget.parse(budget, whole=collect is not None)
    changes = [*read_settings(settings or []), *(overrides or [])]
    log_to_console()
    steps, grid, left = load_steps(), None, []
    if run:
        grid = _run_steps(steps, changes, quick, results, time, collect)
        left = [job for step in steps for job in _plan(step, changes, quick, results)[1]]
    if document:
        _write_document(document, results, changes, settings or [], overrides or [])
    exit_if_incomplete(grid, left)


def _run_steps(
    steps: Sequence[ComparisonStep],
    changes: Sequence[str],
    quick: bool,
    results: Path,
    time: Budget,
    collect: Path | None,
) -> Grid | None:
    """Run what each step lacks; which jobs a step has may depend on the results of those before."""
    whole: Grid | None = None
    for number, step in enumerate(steps, 1):
        known, jobs = _plan(step, changes, quick, results)
        runs = count_runs([jobs])
        todo = f"{plural(runs, 'run')} to do" if known else "waits for steps before it"
        print(f"step {number}, {step.title}: {todo}", file=sys.stderr)
        if not jobs:
            continue
        pool = make_job_pool("local", 1, None, results, time)
        grid = run_stages([jobs], runs, results, time, pool, collect)
        if whole:
            grid.outcomes[:0] = whole.outcomes
        whole = grid
        if grid.stopping:
            break
    return whole


def _plan(
    step: ComparisonStep, changes: Sequence[str], quick: bool, results: Path
) -> tuple[bool, list[Job]]:
    """Return whether jobs of a step are known by now, and those without results."""
    from fedfm.grid.jobs import find_missing
    from fedfm.grid.store import Store
    from fedfm.paper.comparison.plan import ResultsSoFar, plan_step

    summaries = Store(results).summaries()
    jobs = plan_step(step, ResultsSoFar(summaries, changes, quick))
    return bool(jobs), find_missing(jobs, summaries)


def _write_document(
    path: Path,
    results: Path,
    changes: Sequence[str],
    files: Sequence[Path],
    overrides: Sequence[str],
) -> None:
    """Write the document with its pictures; print where they are."""
    from fedfm.paper.comparison.document import make_document, write_document

    words = [word for file in files for word in ("--with", str(file))]
    words += [word for change in overrides for word in ("--set", change)]
    for file in write_document(make_document(path, results, changes, words)):
        print(f"wrote {file}")
