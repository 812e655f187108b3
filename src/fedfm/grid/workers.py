"""Where jobs run: here one after the other, or in several processes; on Ray: ray_engine.py."""

import os
import signal
import threading
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context, parent_process
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Protocol

import torch

from fedfm.core.errors import UserError
from fedfm.grid.budget import Budget
from fedfm.grid.jobs import Job
from fedfm.grid.worker import Outcome, Told, work


class Engine(Protocol):
    """Runs jobs, `slots` at a time."""

    @property
    def slots(self) -> int:
        """How many jobs run at the same time."""

    @property
    def device(self) -> str:
        """The kind of device that jobs run on."""

    def submit(self, job: Job, told: Told) -> "Future[Outcome]":
        """Begin a job; `told` hears of its rounds where the engine can say."""

    def stop(self) -> None:
        """Let the jobs that are running end after their round."""

    def close(self) -> None:
        """Give everything back, once no job is running."""


def local_device() -> str:
    """That of this machine."""
    return "cuda" if torch.cuda.is_available() else "cpu"


class Here:
    """In this process."""

    slots = 1

    def __init__(self, results: Path, budget: Budget) -> None:
        self.results, self.budget = results, budget
        self.device = local_device()
        self._stop = threading.Event()

    def submit(self, job: Job, told: Told) -> "Future[Outcome]":
        """Run it, and only then return."""
        future: Future[Outcome] = Future()
        try:
            outcome = work(job, self.results, self.budget, told=told, stop=self._stop.is_set)
            future.set_result(outcome)
        except Exception as problem:
            future.set_exception(problem)
        return future

    def stop(self) -> None:
        """After the round."""
        self._stop.set()

    def close(self) -> None:
        """There is nothing to give back."""


class Processes:
    """In several processes of this machine, which share its CPU threads."""

    def __init__(self, results: Path, budget: Budget, slots: int) -> None:
        self.results, self.budget, self.slots = results, budget, slots
        self.device = local_device()
        context = get_context("spawn")
        self._stop = context.Event()
        self._pool = ProcessPoolExecutor(slots, context, _begin, (self._stop,))

    def submit(self, job: Job, told: Told) -> "Future[Outcome]":
        """Run it in the next free process."""
        threads = max(1, len(os.sched_getaffinity(0)) // self.slots)
        try:
            return self._pool.submit(_work, job, self.results, self.budget, threads)
        except BrokenProcessPool as problem:
            raise UserError(
                "a process ended by itself, perhaps for lack of memory; what is finished is kept: "
                "go on with fewer --jobs"
            ) from problem

    def stop(self) -> None:
        """After the round."""
        self._stop.set()

    def close(self) -> None:
        """End the processes."""
        self._pool.shutdown(cancel_futures=True)


_stop: Event
"""In a process of `Processes`: whether to stop."""


def _begin(stop: Event) -> None:
    """A process of `Processes` listens to its parent, and does not outlive it."""
    global _stop
    _stop = stop
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _work(job: Job, results: Path, budget: Budget, threads: int) -> Outcome:
    return work(job, results, budget, threads, stop=_stop.is_set)
