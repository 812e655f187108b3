"""Which executor and which precision a run uses."""

import logging
import time
from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple

import torch
from torch import nn

from fedfm.core import trees
from fedfm.core.errors import require, unknown
from fedfm.data.batches import BatchPlan
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
MARGIN = 1.2
"""How much faster than the first candidate another has to be, so that noise decides nothing."""
PATIENCE = 1.0
"""Seconds after which one turn must do."""


class ExecutorChoice(NamedTuple):
    """An executor's name, and why it was chosen."""

    name: str
    why: str


def make_executor(
    name: str, module: nn.Module, data: DeviceData, precision: str = "auto"
) -> Executor:
    """Return the executor `name`; warn and return another one if the network cannot be stacked."""
    if name not in EXECUTORS:
        raise unknown("executor", name, CHOICES)
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
        logger.warning("clients are not trained as one network: %s", reason)
        return (StreamsExecutor if name == "graph" else LoopExecutor)(module, data, low_dtype)


def choose_executor(
    module: nn.Module, data: DeviceData, plans: Sequence[BatchPlan], optimizer: Optimizer
) -> ExecutorChoice:
    """Choose the fastest executor for such plans.

    On a GPU that is `graph`. On a CPU every candidate is timed on the first steps of some clients.
    """
    if data.device.type == "cuda":
        return ExecutorChoice("graph", "there is a GPU")
    try:
        candidates: dict[str, Executor] = {
            "stacked": StackedExecutor(module, data),
            "loop": LoopExecutor(module, data),
        }
    except Unstackable as reason:
        return ExecutorChoice("loop", f"clients cannot be trained as one network: {reason}")
    if torch.get_num_threads() > 1:
        candidates["threads"] = ThreadsExecutor(module, data)
    first_steps = [plan.first(SAMPLE_STEPS) for plan in plans[:SAMPLE_CLIENTS]]
    start = copy_model(module).map(trees.share)
    job = TrainingJob(start, first_steps, Objective((), {}), optimizer)
    fastest, seconds = find_fastest(candidates, job)
    times = ", ".join(f"{name} {1e3 * taken:.0f} ms" for name, taken in seconds.items())
    return ExecutorChoice(fastest, f"the first steps took {times}")


def find_fastest(
    candidates: Mapping[str, Executor], job: TrainingJob
) -> tuple[str, dict[str, float]]:
    """Return the name of the executor that runs the job fastest, and the seconds of each.

    The first candidate wins unless another is clearly faster. Every candidate runs the job once to
    warm up and then up to three times, in turns.
    """
    times: dict[str, list[float]] = {name: [] for name in candidates}
    began = time.perf_counter()
    for turn in range(1 + TURNS):
        for name, executor in candidates.items():
            before = time.perf_counter()
            executor.train(job)
            times[name].append(time.perf_counter() - before)
        if turn and time.perf_counter() - began > PATIENCE:
            break
    seconds = {name: median(taken[1:]) for name, taken in times.items()}
    first, quickest = next(iter(seconds)), min(seconds, key=lambda name: seconds[name])
    return quickest if seconds[first] > MARGIN * seconds[quickest] else first, seconds


def use_precision(name: str, device: torch.device) -> torch.dtype | None:
    """Set a precision up; return the type of a network's products if it is a lower one.

    "auto" is bf16 on a GPU that supports it, else fp32. Weights, averages and statistics are always
    fp32.
    """
    if name not in PRECISIONS:
        raise unknown("precision", name, PRECISIONS)
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
