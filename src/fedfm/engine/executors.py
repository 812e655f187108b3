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
from fedfm.core.trees import Tree
from fedfm.engine.cohort import Cohort, TrainingJob, TrainingResult, gather_results
from fedfm.engine.device_data import DeviceData
from fedfm.engine.forward import Statistic, default_samples_at_once, sum_statistic
from fedfm.engine.networks import BoundNetwork, draws_random_numbers, stack_network
from fedfm.engine.out_of_memory import ONE_CLIENT, ONE_SAMPLE, retry
from fedfm.engine.schedule import packing_order
from fedfm.engine.threads import NetworkPool
from fedfm.methods.base import Model

logger = logging.getLogger(__name__)


class Executor(Protocol):
    """Trains and measures the clients of a cohort; client s has samples[s] and rows s."""

    def train(self, job: TrainingJob) -> TrainingResult:
        """Train every client of the job."""
        ...

    def measure(
        self,
        model: Model,
        samples: Sequence[Tensor],
        statistic: Statistic,
        data: DeviceData | None = None,
    ) -> Tree:
        """Return the sum of a statistic over each client's samples of `data`: a tree [S, ...].

        `data` are the training data by default.
        """
        ...


class LoopExecutor:
    """Trains one client after another, or several on as many CPU threads."""

    def __init__(
        self, module: nn.Module, data: DeviceData, low_dtype: torch.dtype | None = None
    ) -> None:
        self.net, self.data = BoundNetwork(module, low_dtype), data
        self.samples_at_once: int | None = None
        self.pool = NetworkPool(self.net)

    @cached_property
    def random(self) -> bool:
        """Whether training draws random numbers, as dropout does."""
        return draws_random_numbers(self.net.original, self.data.shape)

    def train(self, job: TrainingJob) -> TrainingResult:
        """Train S cohorts of one client; on fewer threads when memory runs out."""

        def train_client(net: BoundNetwork, client: int) -> TrainingResult:
            one = job.rows(slice(client, client + 1))
            return Cohort(net, self.data, one).train(one.plans)

        def train_seeded(client: int) -> TrainingResult:
            with torch.random.fork_rng():
                torch.manual_seed(job.plans[client].seed)
                return train_client(self.net, client)

        clients = range(len(job.plans))
        one_by_one = self.random or self.data.device.type == "cuda"

        def train_all() -> TrainingResult:
            results = (
                map(train_seeded, clients) if one_by_one else self.pool.map(train_client, clients)
            )
            return gather_results(results, torch.split(torch.arange(len(job.plans)), 1))

        threads = 1 if one_by_one else min(self.pool.threads, len(job.plans))
        return retry(train_all, partial(self._halve_threads, self.pool, threads))

    def _halve_threads(self, pool: NetworkPool, threads: int, reason: str) -> None:
        threads = min(threads, pool.threads)
        require(threads > 1, ONE_CLIENT.format(reason))
        pool.limit = threads // 2
        logger.warning(
            "training on %d threads needs more memory than there is (%s): %d from now on",
            threads, reason, pool.limit,
        )  # fmt: skip

    def measure(
        self,
        model: Model,
        samples: Sequence[Tensor],
        statistic: Statistic,
        data: DeviceData | None = None,
    ) -> Tree:
        """Measure all clients at once if they share a model, otherwise one after another."""
        data = data or self.data
        if model.shared:
            return self._measure_with(self.net, model, samples, statistic, data)
        return trees.concat(
            [
                self._measure_with(
                    self.net, model.rows(slice(i, i + 1)), [indices], statistic, data
                )
                for i, indices in enumerate(samples)
            ]
        )

    def _measure_with(
        self,
        net: BoundNetwork,
        model: Model,
        samples: Sequence[Tensor],
        statistic: Statistic,
        data: DeviceData,
    ) -> Tree:
        """Sum a statistic, with fewer samples at once when memory runs out."""
        return retry(
            lambda: sum_statistic(net, model, samples, statistic, data, self.samples_at_once),
            partial(self._halve_samples, data),
        )

    def _halve_samples(self, data: DeviceData, reason: str) -> None:
        before = self.samples_at_once or default_samples_at_once(data)
        require(before > 1, ONE_SAMPLE.format(reason))
        self.samples_at_once = before // 2
        self.release()
        logger.warning(
            "measuring %d samples at once needs more memory than there is (%s): %d at a time "
            "from now on", before, reason, self.samples_at_once,
        )  # fmt: skip

    def release(self) -> None:
        """Free the memory that is kept from round to round."""
        self.net.unbind()
        gc.collect()
        torch.cuda.empty_cache()


class StackedExecutor(LoopExecutor):
    """Trains all clients of the cohort together, as one network with a client axis."""

    def __init__(
        self, module: nn.Module, data: DeviceData, low_dtype: torch.dtype | None = None
    ) -> None:
        super().__init__(module, data, low_dtype)
        self.stack = stack_network(module, data.shape, low_dtype)
        self.clients_at_once: int | None = None

    def train(self, job: TrainingJob) -> TrainingResult:
        """Train one cohort of S clients; several smaller ones when memory runs out.

        Training changes none of its arguments, so it can be retried.
        """
        order = torch.tensor(packing_order(job.plans))

        def train_in_parts() -> TrainingResult:
            parts = torch.split(order, self.clients_at_once or len(order))
            return gather_results((self.train_cohort(job.rows(part)) for part in parts), parts)

        return retry(train_in_parts, partial(self._halve_clients, len(job.plans)))

    def _halve_clients(self, clients: int, reason: str) -> None:
        before = min(self.clients_at_once or clients, clients)
        require(before > 1, ONE_CLIENT.format(reason))
        self.clients_at_once = (before + 1) // 2
        self.release()
        logger.warning(
            "training %d clients at once needs more memory than there is (%s): %d at a time from "
            "now on", before, reason, self.clients_at_once,
        )  # fmt: skip

    def release(self) -> None:
        """Free the memory that is kept from round to round."""
        self.stack.unbind()
        super().release()

    def train_cohort(self, job: TrainingJob) -> TrainingResult:
        """Train clients that are in packing order."""
        return Cohort(self.stack, self.data, job).train(job.plans)

    def measure(
        self,
        model: Model,
        samples: Sequence[Tensor],
        statistic: Statistic,
        data: DeviceData | None = None,
    ) -> Tree:
        """Measure all clients at once, with one model or one each."""
        net = self.net if model.shared else self.stack
        return self._measure_with(net, model, samples, statistic, data or self.data)


class ThreadsExecutor(StackedExecutor):
    """Splits the cohort into one stack per CPU thread; the stacks train side by side."""

    def __init__(
        self, module: nn.Module, data: DeviceData, low_dtype: torch.dtype | None = None
    ) -> None:
        super().__init__(module, data, low_dtype)
        self.stacks = NetworkPool(self.stack)

    def train(self, job: TrainingJob) -> TrainingResult:
        """Train a cohort on each thread; each gets long and short clients alike."""
        order = torch.tensor(packing_order(job.plans))

        def train_part(net: BoundNetwork, part: Tensor) -> TrainingResult:
            some = job.rows(part)
            return Cohort(net, self.data, some).train(some.plans)

        def train_all() -> TrainingResult:
            threads = min(self.stacks.threads, len(job.plans))
            if threads == 1:
                return super(ThreadsExecutor, self).train(job)
            parts = [order[thread::threads] for thread in range(threads)]
            return gather_results(self.stacks.map(train_part, parts), parts)

        return retry(train_all, partial(self._halve_threads, self.stacks, len(job.plans)))
