"""Small grids: recipes whose runs take a hundredth of a second, and their results."""

import json
from pathlib import Path
from typing import Any

from fedfm.grid.budget import Budget
from fedfm.grid.job_pools import InProcess
from fedfm.grid.jobs import Job, plan_jobs
from fedfm.grid.progress import LineDisplay
from fedfm.grid.recipe import Recipe
from fedfm.grid.runner import Grid
from fedfm.grid.store import Store, Summary
from fedfm.grid.worker import JobOutcome

BASE: dict[str, Any] = {
    "executor": "stacked",
    "model": {"name": "mlp", "hidden": [8]},
    "partition": {"kind": "iid"},
    "training": {"rounds": 3, "epochs": 1, "clients": 4, "batch_size": 32},
}
METHODS: dict[str, dict[str, Any]] = {
    "FedAvg": {"method": {"fedavg": {}}},
    "FedFM": {"method": {"fedfm": {"strength": 1.0, "start_round": 1}}},
}
EPOCHS: dict[str, dict[str, Any]] = {f"E = {e}": {"training": {"epochs": e}} for e in (2, 1)}


def recipe(name: str = "tiny", **changes: Any) -> Recipe:
    """Two methods, with one and with two local epochs."""
    axes = {"method": METHODS, "epochs": EPOCHS}
    given: dict[str, Any] = {"axes": axes, "rows": ("method",), "columns": ("epochs",)}
    return Recipe(name, "tiny", base=BASE, **(given | changes))


def jobs_of(
    recipe: Recipe, *overrides: str, seeds: int = 2, only: tuple[str, ...] = ()
) -> list[Job]:
    """Everything that a recipe asks for."""
    return plan_jobs(recipe, False, range(seeds), overrides, only)


def run(jobs: list[Job], results: Path, budget: Budget | None = None) -> list[JobOutcome]:
    """Run what is missing, in this process."""
    budget = budget or Budget()
    return Grid(results, budget, InProcess(results, budget), LineDisplay(0, budget)).run(jobs)


def found(results: Path) -> dict[tuple[Any, ...], Summary]:
    """The results by place and config; none may be there twice."""
    summaries = Store(results).summaries()
    keyed = {(summary.place, summary.digest): summary for summary in summaries}
    assert len(keyed) == len(summaries), "a result is there twice"
    return keyed


def timeless(results: Path) -> list[str]:
    """The lines of the store without what depends on the clock, in any order."""
    lines = [json.loads(line) for line in (results / "results.jsonl").read_text().splitlines()]
    for line in lines:
        line["totals"].pop("seconds")
        for key in ("finished", "clock", "together"):
            line.pop(key)
    return sorted(json.dumps(line, sort_keys=True) for line in lines)
