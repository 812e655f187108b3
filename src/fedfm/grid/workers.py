"""Where jobs run: in this process, in several processes, or on a Ray cluster."""

import os
import signal
import threading
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from importlib import import_module
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch

from fedfm.core.errors import UserError, not_installed
from fedfm.grid.budget import Budget
from fedfm.grid.jobs import Job
from fedfm.grid.worker import JobOutcome, OnRound, run_job


class Workers:
    """Run jobs on an executor, `slots` at a time.

    A file in the results folder tells jobs to stop, since every worker sees that folder.
    """

    threads = 0
    """CPU threads of a job; 0: PyTorch's default."""
    shows_rounds = False
    """Whether jobs can report their rounds to this process."""

    def __init__(self, results: Path, budget: Budget, executor: Executor, slots: int = 1) -> None:
        self.results, self.budget, self.executor = results, budget, executor
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self._slots = slots
        self._stop_file = self.results / "locks" / f"stop-{uuid4().hex}"

    @property
    def slots(self) -> int:
        """Return how many jobs run at the same time."""
        return self._slots

    def submit(self, job: Job, on_round: OnRound) -> "Future[JobOutcome]":
        """Begin a job; `on_round` receives its rounds where `shows_rounds`."""
        callback, stop = (on_round if self.shows_rounds else None), self._stop_file.exists
        try:
            return self.executor.submit(
                run_job, job, self.results, self.budget, self.threads, callback, stop
            )
        except BrokenProcessPool as problem:
            raise UserError(
                "a worker process ended unexpectedly, perhaps for lack of memory; finished runs "
                "are kept: run the command again with fewer --jobs"
            ) from problem

    def stop(self) -> None:
        """Let the running jobs end after their round."""
        self._stop_file.parent.mkdir(parents=True, exist_ok=True)
        self._stop_file.touch()

    def close(self) -> None:
        """Release everything, once no job is running."""
        self.executor.shutdown(cancel_futures=True)
        self._stop_file.unlink(missing_ok=True)


class InProcess(Workers):
    """Run jobs in this process, one after the other."""

    shows_rounds = True

    def __init__(self, results: Path, budget: Budget) -> None:
        super().__init__(results, budget, _InlineExecutor())


class _InlineExecutor(Executor):
    def submit(self, function: Any, /, *arguments: Any, **options: Any) -> "Future[Any]":
        """Call the function, and return when it has returned."""
        future: Future[Any] = Future()
        try:
            future.set_result(function(*arguments, **options))
        except Exception as problem:
            future.set_exception(problem)
        return future


class LocalProcesses(Workers):
    """Run jobs in several processes, which share the machine's CPU threads."""

    def __init__(self, results: Path, budget: Budget, slots: int) -> None:
        pool = ProcessPoolExecutor(slots, get_context("spawn"), _start_process)
        super().__init__(results, budget, pool, slots)
        self.threads = max(1, len(os.sched_getaffinity(0)) // slots)


def _start_process() -> None:
    """Leave signals to the parent process, and end with it."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


class RayWorkers(Workers):
    """Run jobs on a Ray cluster, one per task, with a GPU each where there are any.

    The cluster is the one at `address`, or a new one on this machine. Its machines must have fedfm
    and see the results folder under the same path.
    """

    threads = 1

    def __init__(self, results: Path, budget: Budget, address: str | None = None) -> None:
        self._cluster = _RayExecutor(address)
        super().__init__(results.resolve(), budget, self._cluster)
        self.device = "cuda" if self._cluster.unit == "GPU" else "cpu"

    @property
    def slots(self) -> int:
        """Return how many GPUs, or else CPUs, the cluster has at this moment."""
        return max(1, int(self._cluster.ray.cluster_resources().get(self._cluster.unit, 1)))


class _RayExecutor(Executor):
    def __init__(self, address: str | None) -> None:
        try:
            self.ray = import_module("ray")
        except ModuleNotFoundError as problem:
            raise not_installed("--engine ray needs Ray", "ray") from problem
        try:
            self.ray.init(address=address, include_dashboard=False, log_to_driver=False)
        except ConnectionError as problem:
            raise UserError(f"no Ray cluster answers at {address}: {problem}") from problem
        self.unit = "GPU" if self.ray.cluster_resources().get("GPU") else "CPU"
        self.remote = self.ray.remote(max_retries=0, **{f"num_{self.unit.lower()}s": 1})

    def submit(self, function: Any, /, *arguments: Any, **options: Any) -> "Future[Any]":
        """Start a task; it writes its files itself, and only its outcome comes back."""
        future: Future[Any] = self.remote(function).remote(*arguments, **options).future()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Leave the cluster; one that was started here ends."""
        self.ray.shutdown()
