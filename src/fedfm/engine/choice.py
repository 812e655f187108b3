"""Which executor a run gets."""

import logging
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import nn

from fedfm.core import trees
from fedfm.core.errors import require, unknown
from fedfm.core.sgd import Sgd
from fedfm.data.batches import BatchPlan
from fedfm.engine.calibration import find_fastest
from fedfm.engine.device_data import DeviceData
from fedfm.engine.executors import Executor, LoopExecutor, StackedExecutor, ThreadsExecutor
from fedfm.engine.graphs import GraphExecutor
from fedfm.engine.networks import copy_model
from fedfm.engine.precision import use_precision
from fedfm.engine.stacking.layers import Unstackable
from fedfm.engine.streams import StreamsExecutor

logger = logging.getLogger(__name__)
EXECUTORS = {
    "loop": LoopExecutor,
    "stacked": StackedExecutor,
    "lanes": ThreadsExecutor,
    "graph": GraphExecutor,
}
CHOICES = ("auto", *EXECUTORS)
SAMPLE_STEPS, SAMPLE_CLIENTS = 2, 10
"""How many steps of how many clients "auto" tries."""


def make_executor(
    name: str, module: nn.Module, data: DeviceData, precision: str = "auto"
) -> Executor:
    """The executor of that name; where a network cannot be stacked another one, said once."""
    if name not in EXECUTORS:
        raise unknown("executor", name, CHOICES)
    device = data.device
    require(
        name != "lanes" or device.type == "cpu",
        "executor lanes is for CPUs; use executor=auto",
    )
    require(
        name != "graph" or device.type == "cuda",
        "executor graph needs an NVIDIA GPU (device=cuda): choose executor=stacked, or go on where "
        "the run was begun",
    )
    low = use_precision(precision, device)
    if device.type == "cuda" and data.scale.dtype == torch.float64:
        logger.warning("a network in float64 is trained one client after another on a GPU")
        return LoopExecutor(module, data)
    try:
        return EXECUTORS[name](module, data, low)
    except Unstackable as reason:
        logger.warning("clients are not trained as one network: %s", reason)
        return (StreamsExecutor if name == "graph" else LoopExecutor)(module, data, low)


class ExecutorChoice(NamedTuple):
    """An executor's name, and why it was chosen."""

    name: str
    why: str


def choose_executor(
    module: nn.Module, data: DeviceData, plans: Sequence[BatchPlan], sgd: Sgd
) -> ExecutorChoice:
    """The fastest executor for such plans: `graph` on a GPU.

    On a CPU they all take the first steps of some clients.
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
        candidates["lanes"] = ThreadsExecutor(module, data)
    few = [plan.first(SAMPLE_STEPS) for plan in plans[:SAMPLE_CLIENTS]]
    name, seconds = find_fastest(candidates, copy_model(module).map(trees.share), few, sgd)
    times = ", ".join(f"{each} {1e3 * found:.0f} ms" for each, found in seconds.items())
    return ExecutorChoice(name, f"the first steps took {times}")
