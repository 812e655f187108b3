"""Executors: how a cohort is packed onto the machine."""

import gc
import logging
from collections.abc import Sequence
from functools import cached_property, partial
from typing import Protocol

import torch
from torch import Tensor, nn

from fedfm.core import trees
from fedfm.core.errors import require
from fedfm.core.sgd import Sgd
from fedfm.core.trees import Tree
from fedfm.data.batches import BatchPlan
from fedfm.engine.cohort import Cohort, TrainingResult, gather_results
from fedfm.engine.device_data import DeviceData
from fedfm.engine.forward import Statistic, default_samples_at_once, sum_statistic
from fedfm.engine.networks import BoundNetwork, draws_random_numbers, stack_network
from fedfm.engine.objective import Objective
from fedfm.engine.out_of_memory import retry
from fedfm.engine.schedule import packing_order
from fedfm.engine.threads import NetworkPool
from fedfm.methods.base import Model

logger = logging.getLogger(__name__)
ALONE = (
    "one client alone needs more memory than the GPU has ({}): use a smaller batch_size or model, "
    "or precision=bf16"
)


class Executor(Protocol):
    """Trains and measures the clients of a cohort; client s has plans[s], samples[s], rows s."""

    def train(
        self, start: Model, plans: Sequence[BatchPlan], objective: Objective, sgd: Sgd
    ) -> TrainingResult:
        """Local training of every client from `start` ([S, ...], or [1, ...] for all alike)."""
        ...

    def measure(
        self,
        model: Model,
        samples: Sequence[Tensor],
        statistic: Statistic,
        data: DeviceData | None = None,
    ) -> Tree:
        """The sum of a statistic over each client's samples, or over a data's: a tree [S, ...]."""
        ...


class LoopExecutor:
    """One client after another, or several on as many CPU threads; the network as it is."""

    def __init__(self, module: nn.Module, data: DeviceData, low: torch.dtype | None = None) -> None:
        self.net, self.data = BoundNetwork(module, low), data
        self.at_once: int | None = None
        self.lanes = NetworkPool(self.net)

    @cached_property
    def random(self) -> bool:
        """Whether training draws numbers, as dropout does."""
        return draws_random_numbers(self.net.original, self.data.shape)

    def train(
        self, start: Model, plans: Sequence[BatchPlan], objective: Objective, sgd: Sgd
    ) -> TrainingResult:
        """S cohorts of one client."""

        def alone(net: BoundNetwork, client: int) -> TrainingResult:
            one = slice(client, client + 1)
            cohort = Cohort(net, self.data, start.rows(one), objective.rows(one), sgd, 1)
            return cohort.train([plans[client]])

        def seeded(client: int) -> TrainingResult:
            with torch.random.fork_rng():
                torch.manual_seed(plans[client].seed)
                return alone(self.net, client)

        each = range(len(plans))
        one_by_one = self.random or self.data.device.type == "cuda"
        outcomes = map(seeded, each) if one_by_one else self.lanes.map(alone, each)
        return gather_results(outcomes, torch.split(torch.arange(len(plans)), 1))

    def measure(
        self,
        model: Model,
        samples: Sequence[Tensor],
        statistic: Statistic,
        data: DeviceData | None = None,
    ) -> Tree:
        """All clients at once where they share one model, one after another where not."""
        data = data or self.data
        if model.shared:
            return self._sum_with_retry(self.net, model, samples, statistic, data)
        return trees.concat(
            [
                self._sum_with_retry(self.net, model.rows(slice(i, i + 1)), [own], statistic, data)
                for i, own in enumerate(samples)
            ]
        )

    def _sum_with_retry(
        self,
        net: BoundNetwork,
        model: Model,
        samples: Sequence[Tensor],
        statistic: Statistic,
        data: DeviceData,
    ) -> Tree:
        """`sweep`, with fewer samples at once where memory is short."""
        return retry(
            lambda: sum_statistic(net, model, samples, statistic, data, self.at_once),
            partial(self._measure_less, data),
        )

    def _measure_less(self, data: DeviceData, said: str) -> None:
        """Half as many samples at once from now on."""
        before = self.at_once or default_samples_at_once(data)
        require(
            before > 1,
            f"one sample alone needs more memory than the GPU has ({said}): use a smaller model",
        )
        self.at_once = before // 2
        self.release()
        logger.warning(
            "measuring %d samples at once needs more memory than the GPU has (%s): %d at a time "
            "from now on", before, said, self.at_once,
        )  # fmt: skip

    def release(self) -> None:
        """Give up what is kept from round to round, and the memory that it takes."""
        self.net.unbind()
        gc.collect()
        torch.cuda.empty_cache()


class StackedExecutor(LoopExecutor):
    """All clients of the cohort together, as one network with a client axis."""

    def __init__(self, module: nn.Module, data: DeviceData, low: torch.dtype | None = None) -> None:
        super().__init__(module, data, low)
        self.stack = stack_network(module, data.shape, low)
        self.width: int | None = None

    def train(
        self, start: Model, plans: Sequence[BatchPlan], objective: Objective, sgd: Sgd
    ) -> TrainingResult:
        """One cohort of S clients, those that are done dropping out; fewer where memory is short.

        Training changes nothing that it was given, so it can simply be tried again.
        """
        order = torch.tensor(packing_order(plans))

        def in_parts() -> TrainingResult:
            parts = torch.split(order, self.width or len(order))
            outcomes = (
                self.train_cohort(
                    start.rows(some), [plans[i] for i in some], objective.rows(some), sgd
                )
                for some in parts
            )
            return gather_results(outcomes, parts)

        return retry(in_parts, partial(self._narrow, len(plans)))

    def _narrow(self, clients: int, said: str) -> None:
        """Train half as many clients at once from now on."""
        at_once = min(self.width or clients, clients)
        require(at_once > 1, ALONE.format(said))
        self.width = (at_once + 1) // 2
        self.release()
        logger.warning(
            "%d clients at once need more memory than the GPU has (%s): %d at a time from now on",
            at_once, said, self.width,
        )  # fmt: skip

    def release(self) -> None:
        """Give up what is kept from round to round."""
        self.stack.unbind()
        super().release()

    def train_cohort(
        self, start: Model, plans: Sequence[BatchPlan], objective: Objective, sgd: Sgd
    ) -> TrainingResult:
        """The training of clients that are in packing order."""
        cohort = Cohort(self.stack, self.data, start, objective, sgd, len(plans))
        return cohort.train(plans)

    def measure(
        self,
        model: Model,
        samples: Sequence[Tensor],
        statistic: Statistic,
        data: DeviceData | None = None,
    ) -> Tree:
        """All clients at once, with one model or one each."""
        net = self.net if model.shared else self.stack
        return self._sum_with_retry(net, model, samples, statistic, data or self.data)


class ThreadsExecutor(StackedExecutor):
    """As many stacks as there are CPU threads, side by side, each of a part of the clients."""

    def __init__(self, module: nn.Module, data: DeviceData, low: torch.dtype | None = None) -> None:
        super().__init__(module, data, low)
        self.stacks = NetworkPool(self.stack)

    def train(
        self, start: Model, plans: Sequence[BatchPlan], objective: Objective, sgd: Sgd
    ) -> TrainingResult:
        """A cohort for each thread, the long clients dealt out first."""
        order = torch.tensor(packing_order(plans))
        lanes = min(torch.get_num_threads(), len(plans))
        parts = [order[lane::lanes] for lane in range(lanes)]

        def together(net: BoundNetwork, some: Tensor) -> TrainingResult:
            begin, own = start.rows(some), objective.rows(some)
            cohort = Cohort(net, self.data, begin, own, sgd, len(some))
            return cohort.train([plans[i] for i in some])

        return gather_results(self.stacks.map(together, parts), parts)
