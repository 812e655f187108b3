"""The comparison in small: protocol A on digits, with a narrow network and few rounds."""

from pathlib import Path
from typing import Any

from fedfm.grid.budget import Budget
from fedfm.grid.job_pools import InProcess
from fedfm.grid.jobs import find_missing
from fedfm.grid.progress import LineDisplay
from fedfm.grid.runner import Grid
from fedfm.grid.store import Store, Summary
from fedfm.paper.comparison.plan import ComparisonStep, ResultsSoFar, plan_step
from tests.grid.results import result, write_rounds

TINY = (
    *("data.name=digits", "data.mean=[4.9]", "data.std=[6.0]", "model.width=8"),
    *("clients=4", "participation=0.5", "rounds=3", "epochs=1", "batch_size=100"),
    *("evaluate_every=2", "fedfm.start_round=1", "fedfm-lite.start_round=1"),
)
"""What has no holdout: field-published."""
HELD_OUT = (*TINY, "server_validation=138")
"""Digits have 1,438 training images: 1,300 are left for the clients."""


def run_step(step: ComparisonStep, results: Path, overrides: tuple[str, ...]) -> int:
    """Run what a step lacks; return how many runs that were."""
    summaries = Store(results).summaries()
    jobs = find_missing(plan_step(step, ResultsSoFar(summaries, overrides)), summaries)
    budget = Budget()
    grid = Grid(results, budget, InProcess(results, budget), LineDisplay(0, budget))
    outcomes = grid.run(jobs)
    assert [each.problem for each in outcomes if each.problem] == []
    return sum(each.finished for each in outcomes)


def made_up(
    step: ComparisonStep, results: Path, accuracies: dict[str, float], **changes: Any
) -> None:
    """Store made-up results for the jobs of a step: in percent, by the last label."""
    summaries = Store(results).summaries()
    new: list[Summary] = []
    for job in find_missing(plan_step(step, ResultsSoFar(summaries)), summaries):
        for labels in job.labels:
            accuracy = accuracies[labels.get("method") or labels.get("setting") or ""]
            for seed in job.seeds:
                metrics = {
                    "last_test_accuracy": accuracy / 100 - 0.01,
                    "best_test_accuracy": accuracy / 100 + 0.01,
                }
                new.append(
                    result(
                        labels,
                        seed,
                        accuracy + 0.1 * seed,
                        recipe=job.recipe,
                        config=job.config.as_toml(),
                        folder=f"runs/{job.digest}-{seed}",
                        val_accuracy=accuracy / 100,
                        metrics=metrics,
                        clock=240.0,
                        together=1,
                        **changes,
                    )
                )
    store = Store(results)
    store.append(new)
    write_rounds(store)
