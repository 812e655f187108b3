"""What the commands that run a grid share: run jobs, and say what is missing."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fedfm.core.errors import plural

if TYPE_CHECKING:
    from fedfm.grid.budget import Budget
    from fedfm.grid.job_pools import JobPool
    from fedfm.grid.jobs import Job
    from fedfm.grid.runner import Grid

LISTED = 8
"""The most missing cells that are listed by name."""


def make_job_pool(
    engine: str, jobs: int, ray_address: str | None, results: Path, budget: Budget
) -> JobPool:
    """Return the pool that the user asked for."""
    from fedfm.grid.job_pools import InProcess, LocalProcesses, RayPool

    if engine == "ray":
        return RayPool(results, budget, ray_address)
    return InProcess(results, budget) if jobs == 1 else LocalProcesses(results, budget, jobs)


def count_runs(stages: Iterable[Sequence[Job]]) -> int:
    """Return how many different runs some stages have."""
    return len({key for jobs in stages for job in jobs for key in job.keys})


def run_stages(
    stages: Iterable[Sequence[Job]],
    runs: int,
    results: Path,
    budget: Budget,
    pool: JobPool,
    collect: Path | None,
) -> Grid:
    """Run the jobs of one stage after another, and show progress; `runs` counts those of all."""
    from fedfm.grid.progress import open_display
    from fedfm.grid.runner import Grid

    try:
        with open_display(runs, budget) as display:
            grid = Grid(results, budget, pool, display, collect)
            for jobs in stages:
                grid.run(jobs)
                if grid.stopping:
                    break
            return grid
    except KeyboardInterrupt as interrupt:
        print("fedfm: interrupted; the same command continues", file=sys.stderr)
        raise typer.Exit(130) from interrupt
    finally:
        pool.close()


def exit_if_incomplete(grid: Grid | None, left: Sequence[Job]) -> None:
    """Say what failed, what is missing and how to run it.

    Exit with code 1 if a job failed, and with 130 if the user stopped the command.
    """
    outcomes = grid.outcomes if grid else []
    problems = {outcome.problem: outcome.job.title for outcome in outcomes if outcome.problem}
    for problem, title in problems.items():
        print(f"fedfm: failed, for example {title}: {problem}", file=sys.stderr)
    if left:
        print("\n".join(_describe_missing(left)), file=sys.stderr)
    if grid and grid.interrupted:
        raise typer.Exit(130)
    if problems:
        raise typer.Exit(1)


def _describe_missing(left: Sequence[Job]) -> Iterator[str]:
    """Yield how many runs are missing, the command that runs them, and some of their names."""
    runs = plural(sum(len(job.seeds) for job in left), "run")
    words = [word for word in sys.argv[1:] if word != "--no-run"]
    yield f"missing: {runs} in {plural(len(left), 'cell')}; this command continues:"
    yield f"  {shlex.join(['fedfm', *words])}"
    for job in left[:LISTED]:
        yield f"    {job.title}"
    if len(left) > LISTED:
        yield f"    and {len(left) - LISTED} more"
