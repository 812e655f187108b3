"""Where jobs run: in this process, in several processes, or on a Ray cluster."""

import os
import signal
import threading
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from importlib import import_module
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch

from fedfm.core.errors import UserError, missing_package_error
from fedfm.grid.budget import Budget
from fedfm.grid.jobs import Job
from fedfm.grid.worker import JobOutcome, OnRound, run_job


class JobPool:
    """Run jobs, `slots` at a time.

    A file in the results folder tells jobs to stop, since every worker sees that folder.
    """

    threads = 0
    """CPU threads of a job; 0: PyTorch's default."""
    shows_rounds = False
    """Whether jobs can report their rounds to this process."""

    def __init__(self, results: Path, budget: Budget, slots: int = 1) -> None:
        self.results, self.budget, self._slots = results, budget, slots
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self._stop_file = self.results / "locks" / f"stop-{uuid4().hex}"

    @property
    def slots(self) -> int:
        """Return how many jobs run at the same time."""
        return self._slots

    def submit(self, job: Job, on_round: OnRound) -> "Future[JobOutcome]":
        """Begin a job; `on_round` receives its rounds where `shows_rounds`."""
        callback, stop = (on_round if self.shows_rounds else None), self._stop_file.exists
        return self._start(job, self.results, self.budget, self.threads, callback, stop)

    def _start(self, *arguments: Any) -> "Future[JobOutcome]":
        """Begin `run_job` with these arguments."""
        raise NotImplementedError

    def stop(self) -> None:
        """Let the running jobs end after their round."""
        self._stop_file.parent.mkdir(parents=True, exist_ok=True)
        self._stop_file.touch()

    def close(self) -> None:
        """Release everything, once no job is running."""
        self._stop_file.unlink(missing_ok=True)


class InProcess(JobPool):
    """Run jobs in this process, one after the other."""

    shows_rounds = True

    def _start(self, *arguments: Any) -> "Future[JobOutcome]":
        future: Future[JobOutcome] = Future()
        try:
            future.set_result(run_job(*arguments))
        except Exception as problem:
            future.set_exception(problem)
        return future


class LocalProcesses(JobPool):
    """Run jobs in several processes, which share the machine's CPU threads."""

    def __init__(self, results: Path, budget: Budget, slots: int) -> None:
        super().__init__(results, budget, slots)
        self._pool = ProcessPoolExecutor(slots, get_context("spawn"), _start_process)
        self.threads = max(1, len(os.sched_getaffinity(0)) // slots)

    def _start(self, *arguments: Any) -> "Future[JobOutcome]":
        try:
            return self._pool.submit(run_job, *arguments)
        except BrokenProcessPool as problem:
            raise UserError(
                "a worker process ended unexpectedly, perhaps for lack of memory; finished runs "
                "are kept: run the command again with fewer --jobs"
            ) from problem

    def close(self) -> None:
        """End the processes."""
        self._pool.shutdown(cancel_futures=True)
        super().close()


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


class RayPool(JobPool):
    """Run jobs on a Ray cluster, one per task, with a GPU each where there are any.

    The cluster is the one at `address`, or a new one on this machine. Its machines must have fedfm
    and see the results folder under the same path.
    """

    threads = 1

    def __init__(self, results: Path, budget: Budget, address: str | None = None) -> None:
        super().__init__(results.resolve(), budget)
        try:
            self._ray = import_module("ray")
            self._ray.init(address=address, include_dashboard=False, log_to_driver=False)
        except ModuleNotFoundError as problem:
            raise missing_package_error("--engine ray needs Ray", "ray") from problem
        except ConnectionError as problem:
            raise UserError(f"no Ray cluster answers at {address}: {problem}") from problem
        self._unit = "GPU" if self._ray.cluster_resources().get("GPU") else "CPU"
        self.device = "cuda" if self._unit == "GPU" else "cpu"
        resources = {f"num_{self._unit.lower()}s": 1}
        self._task = self._ray.remote(max_retries=0, **resources)(run_job)

    @property
    def slots(self) -> int:
        """Return how many GPUs, or else CPUs, the cluster has at this moment."""
        return max(1, int(self._ray.cluster_resources().get(self._unit, 1)))

    def _start(self, *arguments: Any) -> "Future[JobOutcome]":
        """Start a task; it writes its files itself, and only its outcome comes back."""
        future: Future[JobOutcome] = self._task.remote(*arguments).future()
        return future

    def close(self) -> None:
        """Leave the cluster; one that was started here ends."""
        self._ray.shutdown()
        super().close()
