"""Which executor is faster here, found by trying both for a moment."""

import time
from collections.abc import Mapping, Sequence
from statistics import median

from fedfm.core.sgd import Sgd
from fedfm.data.batches import BatchPlan
from fedfm.engine.executors import Executor
from fedfm.engine.objective import Objective
from fedfm.methods.base import Model

TURNS = 3
MARGIN = 1.2
"""How much faster than the first candidate another has to be, so that noise decides nothing."""
PATIENCE = 1.0
"""Seconds after which one turn must do."""


def find_fastest(
    candidates: Mapping[str, Executor], start: Model, plans: Sequence[BatchPlan], sgd: Sgd
) -> tuple[str, dict[str, float]]:
    """The name of the executor that trains these clients fastest, and the seconds of each.

    The first candidate wins unless another is clearly faster.
    Every candidate takes the plans once to warm up and then up to three times, in turns.
    """
    times: dict[str, list[float]] = {name: [] for name in candidates}
    began = time.perf_counter()
    for turn in range(1 + TURNS):
        for name, executor in candidates.items():
            before = time.perf_counter()
            executor.train(start, plans, Objective((), {}), sgd)
            times[name].append(time.perf_counter() - before)
        if turn and time.perf_counter() - began > PATIENCE:
            break
    seconds = {name: median(found[1:]) for name, found in times.items()}
    first, quickest = next(iter(seconds)), min(seconds, key=lambda name: seconds[name])
    return quickest if seconds[first] > MARGIN * seconds[quickest] else first, seconds
