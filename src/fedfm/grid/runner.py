"""Run the jobs that a recipe lacks, cheapest first, within a time budget."""

import logging
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType

from fedfm.grid.budget import Budget, Speed
from fedfm.grid.job_pools import JobPool
from fedfm.grid.jobs import Job, find_missing, sort_jobs
from fedfm.grid.merge import collect_results
from fedfm.grid.store import Store
from fedfm.grid.worker import JobOutcome
from fedfm.run.records import RoundRecord

logger = logging.getLogger(__name__)


class Display:
    """What shows the progress of a grid; this one shows nothing."""

    def begin(self, job: Job) -> None:
        """Show that a job begins."""

    def round(self, job: Job, record: RoundRecord) -> None:
        """Show a round of a job in this process."""

    def end(self, outcome: JobOutcome) -> None:
        """Show that a job has ended."""


class Grid:
    """Run jobs on workers, and keep their outcomes."""

    def __init__(
        self,
        results: Path,
        budget: Budget,
        engine: JobPool,
        display: Display,
        collect: Path | None = None,
    ) -> None:
        self.store, self.budget = Store(results), budget
        self.engine, self.display, self.collect = engine, display, collect
        self.speed = Speed({})
        self.outcomes: list[JobOutcome] = []
        self.interrupted = False
        """Whether the user stopped it."""

    @property
    def stopping(self) -> bool:
        """Return whether no more jobs begin."""
        return self.interrupted or self.budget.left <= 0

    def run(self, jobs: Sequence[Job]) -> list[JobOutcome]:
        """Run those of the jobs that have no results."""
        left = find_missing(jobs, self.store.summaries())
        self._learn(left)
        waiting = sort_jobs(left, self.store.folder, spread=not self._time_for(left))
        running: dict[Future[JobOutcome], Job] = {}
        with self._stop_on_signals():
            while (waiting and not self.stopping) or running:
                self._fill(waiting, running)
                self._collect(running)
        return self.outcomes

    def _fill(self, waiting: list[Job], running: dict["Future[JobOutcome]", Job]) -> None:
        """Begin as many jobs as the workers take at a time."""
        while waiting and len(running) < self.engine.slots and not self.stopping:
            chosen = self._next(waiting)
            if chosen is None:
                waiting.clear()
                return
            job = waiting.pop(chosen)
            self.display.begin(job)
            running[self.engine.submit(job, partial(self.display.round, job))] = job

    def _next(self, waiting: Sequence[Job]) -> int | None:
        """Return the first job that should end in time, or else the first: it can be resumed.

        None where an unfinished job would be lost.
        """
        if not self.budget.limited:
            return 0
        self._learn(waiting)
        fitting = (n for n, job in enumerate(waiting) if self._estimate(job) < self.budget.left)
        return next(fitting, None if self.budget.whole else 0)

    def _learn(self, jobs: Sequence[Job]) -> None:
        """Measure finished jobs, if a kind of job among these is unknown."""
        unknown = (self.speed.seconds(job.config) is None for job in jobs)
        if self.budget.limited and any(unknown):
            self.speed = Speed.of(self.store.summaries(), self.engine.device)

    def _time_for(self, jobs: Sequence[Job]) -> bool:
        """Return whether all jobs should end in time, as far as is known."""
        known = all(self.speed.seconds(job.config) is not None for job in jobs)
        needed = sum(map(self._estimate, jobs)) / self.engine.slots
        return not self.budget.limited or (known and needed < self.budget.left)

    def _estimate(self, job: Job) -> float:
        """Estimate the seconds of a job; 0 if nothing similar has been run."""
        seconds = self.speed.seconds(job.config, len(job.seeds)) or 0.0
        return seconds * job.work_left(self.store.folder) / len(job.seeds)

    def _collect(self, running: dict["Future[JobOutcome]", Job]) -> None:
        """Wait for a job to end, and keep its outcome."""
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            job = running.pop(future)
            problem = future.exception()
            outcome = future.result() if problem is None else self._log_failure(job, problem)
            self.outcomes.append(outcome)
            self.display.end(outcome)
            if self.collect and outcome.finished:
                collect_results(self.store.folder, self.collect)

    def _log_failure(self, job: Job, problem: BaseException) -> JobOutcome:
        """Log an unexpected exception with its traceback, and return the outcome."""
        if self.interrupted:
            return JobOutcome(job, stopped=True)
        logger.error("%s failed", job.title, exc_info=problem)
        return JobOutcome(job, problem=f"{type(problem).__name__}: {problem}")

    @contextmanager
    def _stop_on_signals(self) -> Iterator[None]:
        """Stop after the round at the first signal, at once at the second."""

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
