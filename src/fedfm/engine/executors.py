"""Executors: how a cohort is packed onto the machine."""

import logging
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from fedfm.algorithms.base import Model
from fedfm.core import trees
from fedfm.core.errors import unknown
from fedfm.core.sgd import Sgd
from fedfm.core.trees import Tree
from fedfm.data.batches import Plan
from fedfm.engine.cohort import Objective, Outcome, join, packing_order, train_cohort
from fedfm.engine.feed import Feed
from fedfm.engine.nets import Net, stacked_net
from fedfm.engine.sweep import Statistic, sweep
from fedfm.models.stack import Unstackable

logger = logging.getLogger(__name__)


class Executor(Protocol):
    """Trains and measures the clients of a cohort; client s has plans[s], samples[s], rows s."""

    def train(self, start: Model, plans: Sequence[Plan], objective: Objective, sgd: Sgd) -> Outcome:
        """Local training of every client from `start` ([S, ...], or [1, ...] for all alike)."""
        ...

    def measure(self, model: Model, samples: Sequence[Tensor], statistic: Statistic) -> Tree:
        """The sum of a statistic over each client's samples: a tree [S, ...]."""
        ...


class LoopExecutor:
    """One client after another, with the network as the user wrote it."""

    def __init__(self, module: nn.Module, feed: Feed) -> None:
        self.net = Net(module)
        self.feed = feed

    def train(self, start: Model, plans: Sequence[Plan], objective: Objective, sgd: Sgd) -> Outcome:
        """S cohorts of one client."""
        outcomes = []
        for i, plan in enumerate(plans):
            one = slice(i, i + 1)
            with torch.random.fork_rng():
                torch.manual_seed(plan.seed)
                outcomes.append(
                    train_cohort(
                        self.net, start.rows(one), [plan], objective.rows(one), sgd, self.feed
                    )
                )
        return join(outcomes)

    def measure(self, model: Model, samples: Sequence[Tensor], statistic: Statistic) -> Tree:
        """All clients at once where they share one model, one after another where not."""
        if model.shared:
            return sweep(self.net, model, samples, statistic, self.feed)
        return trees.concat(
            [
                sweep(self.net, model.rows(slice(i, i + 1)), [own], statistic, self.feed)
                for i, own in enumerate(samples)
            ]
        )


class StackedExecutor(LoopExecutor):
    """All clients of the cohort together, as one network with a client axis."""

    def __init__(self, module: nn.Module, feed: Feed) -> None:
        super().__init__(module, feed)
        self.stack = stacked_net(module, tuple(feed.inputs.shape[1:]))

    def train(self, start: Model, plans: Sequence[Plan], objective: Objective, sgd: Sgd) -> Outcome:
        """One cohort of S clients; those that are done drop out."""
        order = torch.tensor(packing_order(plans))
        packed = [plans[i] for i in order]
        outcome = train_cohort(
            self.stack, start.rows(order), packed, objective.rows(order), sgd, self.feed
        )
        return outcome.rows(order.argsort())

    def measure(self, model: Model, samples: Sequence[Tensor], statistic: Statistic) -> Tree:
        """All clients at once, with one model or one each."""
        net = self.net if model.shared else self.stack
        return sweep(net, model, samples, statistic, self.feed)


EXECUTORS = {"loop": LoopExecutor, "stacked": StackedExecutor}


def executor(name: str, module: nn.Module, feed: Feed) -> Executor:
    """The executor of that name; where a network cannot be stacked, the loop, said once."""
    if name not in EXECUTORS:
        raise unknown("executor", name, EXECUTORS)
    try:
        return EXECUTORS[name](module, feed)
    except Unstackable as reason:
        logger.warning("clients are trained one after another: %s", reason)
        return LoopExecutor(module, feed)
