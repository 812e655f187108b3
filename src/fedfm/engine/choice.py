"""Which executor and which precision a run uses."""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import nn

from fedfm.core import trees
from fedfm.core.errors import require, unknown_name_error
from fedfm.data.batches import BatchPlan
from fedfm.engine import timing_cache
from fedfm.engine.cohort import TrainingJob
from fedfm.engine.device_data import DeviceData
from fedfm.engine.executors import Executor, LoopExecutor, StackedExecutor, ThreadsExecutor
from fedfm.engine.graphs import GraphExecutor
from fedfm.engine.networks import copy_model
from fedfm.engine.objective import Objective
from fedfm.engine.stacking.layers import Unstackable
from fedfm.engine.streams import StreamsExecutor
from fedfm.optim import Optimizer

logger = logging.getLogger(__name__)
EXECUTORS = {
    "loop": LoopExecutor,
    "stacked": StackedExecutor,
    "threads": ThreadsExecutor,
    "graph": GraphExecutor,
}
CHOICES = ("auto", *EXECUTORS)
PRECISIONS = ("auto", "fp32", "tf32", "bf16")

SAMPLE_STEPS, SAMPLE_CLIENTS = 2, 10
"""How many steps of how many clients "auto" times."""
TURNS = 3
MARGIN = 1.05
"""How much faster than the first candidate another has to be, so that noise decides little."""
HOPELESS = 1.5
"""A candidate that is slower than the fastest by this factor is not tried again."""
BUDGET, SHARE = 2.0, 0.02
"""Choosing takes at most so many seconds, or this share of the run if that is more."""
FEWEST = 4
"""With time for fewer steps of a client nothing is timed: arithmetic dominates there."""


FEW_SAMPLES = 8
"""How many samples the first trial step has: it shows whether a network is large."""


class ExecutorChoice(NamedTuple):
    """An executor's name, and why it was chosen."""

    name: str
    why: str

    def add(self, note: str) -> "ExecutorChoice":
        """Return the choice with a note on how clients are trained, unless it has that already."""
        return self._replace(why=f"{self.why}; {note}") if note and note not in self.why else self


def make_executor(
    name: str, module: nn.Module, data: DeviceData, precision: str = "auto"
) -> LoopExecutor:
    """Return the executor `name`; warn and return another one if the network cannot be stacked."""
    if name not in EXECUTORS:
        raise unknown_name_error("executor", name, CHOICES)
    device = data.device
    require(
        name != "threads" or device.type == "cpu",
        "executor threads needs a CPU: use executor=auto",
    )
    require(
        name != "graph" or device.type == "cuda",
        "executor graph needs an NVIDIA GPU (device=cuda): use executor=stacked, or resume on the "
        "machine where the run began",
    )
    low_dtype = use_precision(precision, device)
    if device.type == "cuda" and data.scale.dtype == torch.float64:
        logger.warning("on a GPU, a float64 network trains one client after another")
        return LoopExecutor(module, data)
    try:
        return EXECUTORS[name](module, data, low_dtype)
    except Unstackable as reason:
        note = f"clients are not trained as one network: {reason}"
        logger.warning("%s", note)
        made = (StreamsExecutor if name == "graph" else LoopExecutor)(module, data, low_dtype)
        made.note = note
        return made


def choose_executor(
    module: nn.Module,
    data: DeviceData,
    plans: Sequence[BatchPlan],
    optimizer: Optimizer,
    rounds: int = 1,
) -> ExecutorChoice:
    """Choose the fastest executor for a run of so many rounds with such plans.

    On a GPU that is `graph`. On a CPU the candidates are timed on the first steps of some clients,
    unless that was done before on this machine.
    """
    if data.device.type == "cuda":
        return ExecutorChoice("graph", "there is a GPU")
    key = timing_cache.describe_job(module, data, plans, optimizer)
    if (known := timing_cache.recall(key)) and known.get("executor") in EXECUTORS:
        return ExecutorChoice(known["executor"], f"{known.get('why')} (measured before)")
    choice = _measure_executors(module, data, plans, optimizer, rounds)
    timing_cache.remember(key, {"executor": choice.name, "why": choice.why})
    return choice


def _measure_executors(
    module: nn.Module,
    data: DeviceData,
    plans: Sequence[BatchPlan],
    optimizer: Optimizer,
    rounds: int,
) -> ExecutorChoice:
    began = time.perf_counter()
    start, loop = copy_model(module).map(trees.share), LoopExecutor(module, data)
    job = TrainingJob(start, plans, Objective((), {}), optimizer)
    trial = _shorten(job, 1, 1, FEW_SAMPLES)
    few = _time(loop, trial)  # the first one warms up
    few = min(few, _time(loop, trial)) if few < BUDGET / 4 else few
    step = _time(loop, _shorten(job, 1, 1)) if few < _longest_step(BUDGET) else few
    run = rounds * step * sum(plan.steps for plan in plans)
    end = began + max(BUDGET, SHARE * run)
    if step > _longest_step(end - time.perf_counter()):
        return ExecutorChoice("loop", f"a client's step takes {step:.2f} s, mostly arithmetic")
    try:
        candidates: dict[str, Executor] = {"stacked": StackedExecutor(module, data), "loop": loop}
    except Unstackable as reason:
        return ExecutorChoice("loop", f"clients cannot be trained as one network: {reason}")
    if torch.get_num_threads() > 1:
        candidates["threads"] = ThreadsExecutor(module, data)
    left = max(0.0, end - time.perf_counter())
    affordable = max(FEWEST, int(left / (2 * len(candidates) * step)))
    clients = min(SAMPLE_CLIENTS, len(plans), affordable)
    steps = min(SAMPLE_STEPS, affordable // clients)
    fastest, seconds = find_fastest(candidates, _shorten(job, clients, steps), end)
    times = ", ".join(f"{name} {1e3 * taken:.0f} ms" for name, taken in seconds.items())
    return ExecutorChoice(fastest, f"the first steps took {times}")


def _longest_step(seconds: float) -> float:
    """Return how long a client's step may take, so that three candidates can be timed twice."""
    return seconds / (2 * 3 * FEWEST)


def _shorten(job: TrainingJob, clients: int, steps: int, samples: int | None = None) -> TrainingJob:
    """Return the first steps of the first clients of a job, on so many samples in all."""
    plans = [plan.first(steps) for plan in job.plans[:clients]]
    if samples is not None:
        plans = [plan.first_samples(samples) for plan in plans]
    return replace(job, plans=plans)


def find_fastest(
    candidates: Mapping[str, Executor], job: TrainingJob, end: float
) -> tuple[str, dict[str, float]]:
    """Return the name of the executor that runs the job fastest, and the seconds of each.

    The first candidate wins unless another is clearly faster. Every candidate runs the job once to
    warm up and then up to three times, in turns, until the time `end`. One that is much slower than
    the fastest is not tried again.
    """
    seconds: dict[str, float] = {}
    hopeful = [*candidates]
    for turn in range(1 + TURNS):
        for name in hopeful:
            if turn == 0 or time.perf_counter() < end:
                taken = _time(candidates[name], job)
                seconds[name] = taken if turn < 2 else min(taken, seconds[name])
        fastest = min(seconds.values())
        hopeful = [name for name in hopeful if seconds[name] < HOPELESS * fastest]
    first, quickest = next(iter(seconds)), min(seconds, key=lambda name: seconds[name])
    return quickest if seconds[first] > MARGIN * seconds[quickest] else first, seconds


def _time(executor: Executor, job: TrainingJob) -> float:
    before = time.perf_counter()
    executor.train(job)
    return time.perf_counter() - before


def use_precision(name: str, device: torch.device) -> torch.dtype | None:
    """Set a precision up; return the type of a network's products if it is a lower one.

    "auto" is bf16 on a GPU that supports it, else fp32. Weights, averages and statistics are always
    fp32.
    """
    if name not in PRECISIONS:
        raise unknown_name_error("precision", name, PRECISIONS)
    if device.type != "cuda":
        require(name in ("auto", "fp32"), f"precision {name} needs a GPU: on a CPU use fp32")
        return None
    modern = torch.cuda.get_device_capability(device) >= (8, 0)
    require(
        modern or name in ("auto", "fp32"),
        f"this GPU ({torch.cuda.get_device_name(device)}) does not support {name}: use "
        "precision=fp32",
    )
    torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
    torch.backends.cudnn.allow_tf32 = name == "tf32"
    return torch.bfloat16 if name == "bf16" or (name == "auto" and modern) else None
