"""Running grids from the command line: engines, what is missing and how to go on, warnings."""

import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import typer

from fedfm.grid.budget import Budget
from fedfm.grid.jobs import Job
from fedfm.grid.progress import shown
from fedfm.grid.runner import Grid
from fedfm.grid.workers import Engine, Here, Processes

NAMED = 8
"""So many missing cells are named one by one."""


def engine_for(
    name: str, jobs: int, ray_address: str | None, results: Path, budget: Budget
) -> Engine:
    """What the user asked for."""
    if name == "ray":
        from fedfm.grid.ray_workers import OnRay

        return OnRay(results, budget, ray_address)
    return Here(results, budget) if jobs == 1 else Processes(results, budget, jobs)


def run_all(
    stages: Sequence[Sequence[Job]],
    results: Path,
    budget: Budget,
    engine: Engine,
    collect: Path | None,
) -> Grid:
    """Run jobs with a display, one stage after another."""
    try:
        with shown(
            len({key for jobs in stages for job in jobs for key in job.keys}), budget
        ) as bar:
            grid = Grid(results, budget, engine, bar, collect)
            for jobs in stages:
                grid.run(jobs)
            return grid
    except KeyboardInterrupt as interrupt:
        print("fedfm: interrupted; the same command goes on", file=sys.stderr)
        raise typer.Exit(130) from interrupt
    finally:
        engine.close()


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
