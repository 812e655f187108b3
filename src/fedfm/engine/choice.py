"""Which executor a run gets."""

import logging
from collections.abc import Sequence
from typing import NamedTuple

from torch import nn

from fedfm.core import trees
from fedfm.core.errors import require, unknown
from fedfm.core.sgd import Sgd
from fedfm.data.batches import Plan
from fedfm.engine.calibration import fastest
from fedfm.engine.executors import Executor, LoopExecutor, StackedExecutor
from fedfm.engine.feed import Feed
from fedfm.engine.graphs import GraphExecutor, GraphLoopExecutor
from fedfm.engine.nets import model_of
from fedfm.engine.precision import use_precision
from fedfm.models.stack import Unstackable

logger = logging.getLogger(__name__)
EXECUTORS = {"loop": LoopExecutor, "stacked": StackedExecutor, "graph": GraphExecutor}
CHOICES = ("auto", *EXECUTORS)
SAMPLE_STEPS, SAMPLE_CLIENTS = 2, 10
"""How many steps of how many clients "auto" tries."""


def executor(name: str, module: nn.Module, feed: Feed, precision: str = "auto") -> Executor:
    """The executor of that name; where a network cannot be stacked another one, said once."""
    if name not in EXECUTORS:
        raise unknown("executor", name, CHOICES)
    device = feed.labels.device
    require(
        name != "graph" or device.type == "cuda",
        "executor graph needs an NVIDIA GPU (device=cuda); use executor=auto",
    )
    low = use_precision(precision, device)
    try:
        return EXECUTORS[name](module, feed, low)
    except Unstackable as reason:
        logger.warning("clients are not trained as one network: %s", reason)
        return (GraphLoopExecutor if name == "graph" else LoopExecutor)(module, feed, low)


class Choice(NamedTuple):
    """An executor's name, and why it was chosen."""

    name: str
    why: str


def automatic(module: nn.Module, feed: Feed, plans: Sequence[Plan], sgd: Sgd) -> Choice:
    """The fastest executor for such plans: `graph` on a GPU.

    On a CPU the loop and the stacked executor take the first steps of some clients.
    """
    if feed.labels.is_cuda:
        return Choice("graph", "there is a GPU")
    try:
        stacked = StackedExecutor(module, feed)
    except Unstackable as reason:
        return Choice("loop", f"clients cannot be trained as one network: {reason}")
    few = [plan.first(SAMPLE_STEPS) for plan in plans[:SAMPLE_CLIENTS]]
    start = model_of(module).map(trees.share)
    candidates = {"stacked": stacked, "loop": LoopExecutor(module, feed)}
    name, seconds = fastest(candidates, start, few, sgd)
    other = "loop" if name == "stacked" else "stacked"
    ratio = seconds[other] / seconds[name]
    return Choice(name, f"{ratio:.1f} times as fast as {other} on the first steps")
