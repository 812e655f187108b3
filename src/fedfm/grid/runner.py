"""The grid runner: runs what a recipe lacks, cheapest evidence first, within a budget of time."""

import logging
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Protocol

from fedfm.grid.budget import Budget, Speed
from fedfm.grid.jobs import Job, in_order, missing
from fedfm.grid.merge import collected
from fedfm.grid.store import Store
from fedfm.grid.worker import Outcome
from fedfm.grid.workers import Engine
from fedfm.run.records import RoundRecord

logger = logging.getLogger(__name__)


class Display(Protocol):
    """Shows how the grid is getting on."""

    def begin(self, job: Job) -> None:
        """A job begins."""

    def round(self, job: Job, record: RoundRecord) -> None:
        """A round of a job that is run in this process."""

    def end(self, outcome: Outcome) -> None:
        """A job has ended."""


class Grid:
    """Jobs to be run on an engine, and how those that were run ended."""

    def __init__(
        self,
        results: Path,
        budget: Budget,
        engine: Engine,
        display: Display,
        collect: Path | None = None,
    ) -> None:
        self.store, self.budget = Store(results), budget
        self.engine, self.display, self.collect = engine, display, collect
        self.speed = Speed({})
        self.outcomes: list[Outcome] = []
        self.interrupted = False
        """Whether the user stopped it."""

    @property
    def stopping(self) -> bool:
        """Whether no more jobs begin."""
        return self.interrupted or self.budget.left <= 0

    def run(self, jobs: Sequence[Job]) -> list[Outcome]:
        """Run what is missing of some jobs."""
        left = missing(jobs, self.store.summaries())
        self._learn(left)
        waiting = in_order(left, self.store.folder, spread=not self._time_for(left))
        running: dict[Future[Outcome], Job] = {}
        with self._stopped_by_signals():
            while (waiting and not self.stopping) or running:
                self._fill(waiting, running)
                self._collect(running)
        return self.outcomes

    def _fill(self, waiting: list[Job], running: dict["Future[Outcome]", Job]) -> None:
        """Begin as many jobs as the engine takes at a time."""
        while waiting and len(running) < self.engine.slots and not self.stopping:
            chosen = self._next(waiting)
            if chosen is None:
                waiting.clear()
                return
            job = waiting.pop(chosen)
            self.display.begin(job)
            running[self.engine.submit(job, partial(self.display.round, job))] = job

    def _next(self, waiting: Sequence[Job]) -> int | None:
        """The first job that should end in time; if none does, the first: it can go on later.

        Where nobody would go on with it, none.
        """
        if not self.budget.limited:
            return 0
        self._learn(waiting)
        fitting = (n for n, job in enumerate(waiting) if self._estimate(job) < self.budget.left)
        return next(fitting, None if self.budget.whole else 0)

    def _learn(self, jobs: Sequence[Job]) -> None:
        """See how long finished jobs took, if some of these are of a kind that is not known."""
        unknown = (self.speed.seconds(job.config) is None for job in jobs)
        if self.budget.limited and any(unknown):
            self.speed = Speed.of(self.store.summaries(), self.engine.device)

    def _time_for(self, jobs: Sequence[Job]) -> bool:
        """Whether all jobs should end in time, as far as is known."""
        known = all(self.speed.seconds(job.config) is not None for job in jobs)
        needed = sum(map(self._estimate, jobs)) / self.engine.slots
        return not self.budget.limited or (known and needed < self.budget.left)

    def _estimate(self, job: Job) -> float:
        """Seconds that a job should take; nothing like it has been run: 0."""
        seconds = self.speed.seconds(job.config, len(job.seeds)) or 0.0
        return seconds * job.work_left(self.store.folder) / len(job.seeds)

    def _collect(self, running: dict["Future[Outcome]", Job]) -> None:
        """Wait for a job to end."""
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            job = running.pop(future)
            problem = future.exception()
            outcome = future.result() if problem is None else self._failed(job, problem)
            self.outcomes.append(outcome)
            self.display.end(outcome)
            if self.collect and outcome.finished:
                collected(self.store.folder, self.collect)

    def _failed(self, job: Job, problem: BaseException) -> Outcome:
        """What nobody foresaw went wrong: whoever mends it wants to see where."""
        if self.interrupted:
            return Outcome(job, stopped=True)
        logger.error("%s failed", job.title, exc_info=problem)
        return Outcome(job, problem=f"{type(problem).__name__}: {problem}")

    @contextmanager
    def _stopped_by_signals(self) -> Iterator[None]:
        """Once: stop after the round. Twice: at once."""

        def handle(number: int, frame: FrameType | None) -> None:
            if self.interrupted:
                raise KeyboardInterrupt
            self.interrupted = True
            self.engine.stop()

        before = {each: signal.signal(each, handle) for each in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)
