"""What the grid runner costs beside the training of its cells, which should be under 2 %.

Reduced cells are the worst case: they take a second or two, and those of the paper minutes or
hours. A budget makes the runner estimate times from all results that are there, so it is timed
with many of them, too.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from bench._shared import make_table
from rich.console import Console

from fedfm.data import load
from fedfm.grid.budget import Budget
from fedfm.grid.job_pools import InProcess
from fedfm.grid.jobs import Job, plan_jobs
from fedfm.grid.runner import Display, Grid
from fedfm.grid.store import Store
from fedfm.paper.catalogue import load_recipe
from fedfm.run import runner
from fedfm.run.records import Result

SETTINGS = ("executor=stacked", "rounds=20")
MANY = 500
"""Results that are there already, in one of the cases."""


def time_grid(jobs: Sequence[Job], results: Path, budget: Budget) -> tuple[float, float]:
    """Return the seconds of a whole grid, and of the training in it."""
    training, run_together = 0.0, runner.run_together

    def timed(*args: Any, **options: Any) -> list[Result]:
        nonlocal training
        began = time.perf_counter()
        done = run_together(*args, **options)
        training += time.perf_counter() - began
        return done

    with patch.object(runner, "run_together", timed):
        began = time.perf_counter()
        Grid(results, budget, InProcess(results, budget), Display()).run(jobs)
        return time.perf_counter() - began, training


def fill(store: Store, number: int) -> None:
    """Multiply the results that are there, under other seeds."""
    there = store.summaries()
    store.append(
        replace(there[n % len(there)], seed=1000 + n, folder=f"runs/{n}") for n in range(number)
    )


def main() -> None:
    """Time a grid in an empty folder, in a limited time, and beside many results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", type=int, default=8)
    chosen = parser.parse_args().cells
    load("digits")
    heads = ("case", "cells", "training (s)", "beside it (ms a cell)", "ratio")
    table = make_table("the grid runner's own time", *heads)
    jobs = plan_jobs(load_recipe("main"), True, range(2), SETTINGS, ())[:chosen]
    with TemporaryDirectory() as folder:
        time_grid(jobs[:1], Path(folder) / "warm-up", Budget())
        cases = {
            "no results yet": (Path(folder) / "one", Budget()),
            "with a budget": (Path(folder) / "two", Budget(time.time() + 1e6)),
            f"and {MANY} results": (Path(folder) / "many", Budget(time.time() + 1e6)),
        }
        for name, (results, budget) in cases.items():
            if results.name == "many":
                time_grid(jobs[:1], results, budget)
                fill(Store(results), MANY)
            whole, training = time_grid(jobs, results, budget)
            beside = whole - training
            each = f"{1000 * beside / len(jobs):.1f}"
            ratio = f"{beside / training:.2%}"
            table.add_row(name, str(len(jobs)), f"{training:.2f}", each, ratio)
    Console().print(table)


if __name__ == "__main__":
    main()
