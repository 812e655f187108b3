"""Executors: how a cohort is packed onto the machine."""

import gc
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

import torch
from torch import Tensor, nn

from fedfm.core import trees
from fedfm.core.trees import Tree
from fedfm.engine.cohort import Cohort, TrainingJob, TrainingResult, gather_results
from fedfm.engine.device_data import DeviceData
from fedfm.engine.forward import Statistic, default_samples_at_once, sum_statistic
from fedfm.engine.networks import BoundNetwork
from fedfm.engine.out_of_memory import ONE_SAMPLE, halve, retry
from fedfm.engine.stacked_networks import StackedNetwork, stack_network
from fedfm.engine.step_blocks import order_for_packing
from fedfm.engine.threads import NetworkPool
from fedfm.methods.base import Model


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

    stack: BoundNetwork | None = None
    """The network of a whole cohort, if there is one."""
    note = ""
    """What the record of a run says about the way in which clients are trained."""

    def __init__(
        self, module: nn.Module, data: DeviceData, low_dtype: torch.dtype | None = None
    ) -> None:
        self.net, self.data = BoundNetwork(module, low_dtype), data
        self.samples_at_once: int | None = None
        self.pool = NetworkPool(self.net)

    def train(self, job: TrainingJob) -> TrainingResult:
        """Train S cohorts of one client; on fewer threads when memory runs out."""

        def train_client(net: BoundNetwork, client: int) -> TrainingResult:
            return self._train_with(net, job.rows(slice(client, client + 1)))

        clients = range(len(job.plans))

        def train_all() -> TrainingResult:
            on_gpu = self.data.device.type == "cuda"
            results = (
                (train_client(self.net, client) for client in clients)
                if on_gpu
                else self.pool.map(train_client, clients)
            )
            return gather_results(results, torch.split(torch.arange(len(job.plans)), 1))

        return retry(train_all, partial(self._halve_threads, len(job.plans)))

    def _train_with(self, net: BoundNetwork, job: TrainingJob) -> TrainingResult:
        """Train clients that are in packing order as one cohort."""
        return Cohort(net, self.data, job).train(job.plans)

    def _halve_threads(self, clients: int, reason: str) -> None:
        self.pool.limit = halve(min(clients, self.pool.threads), "training on %d threads", reason)

    def measure(
        self,
        model: Model,
        samples: Sequence[Tensor],
        statistic: Statistic,
        data: DeviceData | None = None,
    ) -> Tree:
        """Measure all clients at once if they share a model or are stacked, else one by one.

        Fewer samples are measured at once when memory runs out.
        """
        chosen = data or self.data
        net = self.net if model.shared else self.stack

        def measure_all() -> Tree:
            if net:
                groups = [(net, model, samples)]
            else:
                rows = [model.rows(slice(i, i + 1)) for i in range(len(samples))]
                groups = [(self.net, row, [part]) for row, part in zip(rows, samples, strict=True)]
            at_once = self.samples_at_once
            return trees.concat(
                [sum_statistic(*group, statistic, chosen, at_once) for group in groups]
            )

        return retry(measure_all, partial(self._halve_samples, chosen))

    def _halve_samples(self, data: DeviceData, reason: str) -> None:
        before = self.samples_at_once or default_samples_at_once(data)
        self.samples_at_once = halve(before, "measuring %d samples at once", reason, ONE_SAMPLE)
        self.release()

    def release(self) -> None:
        """Free the memory that is kept from round to round."""
        self.net.unbind()
        gc.collect()
        torch.cuda.empty_cache()


class StackedExecutor(LoopExecutor):
    """Trains all clients of the cohort together, as one network with a client axis."""

    stack: StackedNetwork

    def __init__(
        self, module: nn.Module, data: DeviceData, low_dtype: torch.dtype | None = None
    ) -> None:
        super().__init__(module, data, low_dtype)
        self.stack = stack_network(module, data.fetch_first(2, 3), low_dtype)
        self.pool = NetworkPool(self.stack)
        self.note = self.stack.note
        self.clients_at_once: int | None = None

    def train(self, job: TrainingJob) -> TrainingResult:
        """Train one cohort of S clients; several smaller ones when memory runs out.

        Training changes none of its arguments, so it can be retried.
        """
        order = torch.tensor(order_for_packing(job.plans))

        def train_in_parts() -> TrainingResult:
            parts = torch.split(order, self.clients_at_once or len(order))
            return gather_results((self.train_cohort(job.rows(part)) for part in parts), parts)

        return retry(train_in_parts, partial(self._halve_clients, len(job.plans)))

    def _halve_clients(self, clients: int, reason: str) -> None:
        before = min(self.clients_at_once or clients, clients)
        self.clients_at_once = halve(before, "training %d clients at once", reason)
        self.release()

    def release(self) -> None:
        """Free the memory that is kept from round to round."""
        self.stack.unbind()
        super().release()

    def train_cohort(self, job: TrainingJob) -> TrainingResult:
        """Train clients that are in packing order."""
        return self._train_with(self.stack, job)


class ThreadsExecutor(StackedExecutor):
    """Splits the cohort into one stack per CPU thread; the stacks train side by side."""

    def train(self, job: TrainingJob) -> TrainingResult:
        """Train a cohort on each thread; each gets long and short clients alike."""
        order = torch.tensor(order_for_packing(job.plans))

        def train_part(net: BoundNetwork, part: Tensor) -> TrainingResult:
            return self._train_with(net, job.rows(part))

        def train_all() -> TrainingResult:
            threads = min(self.pool.threads, len(job.plans))
            if threads == 1:
                return super(ThreadsExecutor, self).train(job)
            parts = [order[thread::threads] for thread in range(threads)]
            return gather_results(self.pool.map(train_part, parts), parts)

        return retry(train_all, partial(self._halve_threads, len(job.plans)))


def train_together(jobs: Sequence[TrainingJob], executor: Executor) -> list[TrainingResult]:
    """Return the results of jobs that differ in clients and tensors alone, trained as one."""
    if len(jobs) == 1:
        return [executor.train(jobs[0])]
    model, loss, steps, terms, moved = executor.train(join_jobs(jobs))
    results, first = [], 0
    for job in jobs:
        rows = slice(first, first + len(job.plans))
        parts = ({name: term[rows] for name, term in terms.items()}, trees.rows(moved, rows))
        results.append(TrainingResult(model.rows(rows), loss[rows], steps[rows], *parts))
        first = rows.stop
    return results


def join_jobs(jobs: Sequence[TrainingJob]) -> TrainingJob:
    """Put the clients of all jobs one after another; what a job's clients share is copied."""
    kinds = [(job.objective.pieces, job.optimizer, job.trained) for job in jobs]
    assert all(kind == kinds[0] for kind in kinds)
    tensors = [
        trees.repeat({**job.start._asdict(), "held": job.objective.held}, len(job.plans))
        for job in jobs
    ]
    params, buffers, held = trees.concat(tensors).values()
    return replace(
        jobs[0],
        start=Model(params, buffers),
        plans=[plan for job in jobs for plan in job.plans],
        objective=replace(jobs[0].objective, held=held),
        factors=max((job.factors for job in jobs), key=len),  # of the longest plan
    )
