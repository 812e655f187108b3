"""How the grid runner looks while it runs: a live bar on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.markup import escape
from rich.progress import (
    Progress,
    TaskID,
    TimeElapsedColumn,
)

from fedfm.grid.budget import Budget, in_words
from fedfm.grid.jobs import Job
from fedfm.grid.runner import Display
from fedfm.grid.worker import Outcome
from fedfm.run.console import make_bars
from fedfm.run.records import RoundRecord


def ended(outcome: Outcome) -> str:
    """How a job ended, in words."""
    if outcome.problem:
        return f"failed: {outcome.problem}"
    if outcome.stopped:
        return "stopped after a round, can go on"
    if not outcome.finished:
        return "being run elsewhere" if outcome.elsewhere else "was there already"
    return f"done in {in_words(outcome.seconds)}"


def left_of(budget: Budget) -> str:
    """What is left of the time, in words, if it is limited."""
    return f", {in_words(budget.left)} left of the budget" if budget.limited else ""


QUIET = 30.0
"""Seconds after which plain lines give a sign of life."""


class Lines:
    """A line when a job begins, one when it ends, and some in between if that takes long."""

    def __init__(self, runs: int, budget: Budget) -> None:
        self.runs, self.budget, self.done = runs, budget, 0
        self.heard = time.monotonic()

    def begin(self, job: Job) -> None:
        """Say which."""
        self._say(f"{job.title} ...")

    def round(self, job: Job, record: RoundRecord) -> None:
        """Now and then how far it has come."""
        if time.monotonic() - self.heard >= QUIET:
            rounds, test = job.config.training.rounds, 100 * record.test_accuracy
            self._say(f"{job.title}: round {record.round} of {rounds}, test {test:.1f}%")

    def end(self, outcome: Outcome) -> None:
        """Say how, and how much is done."""
        self.done += outcome.finished
        whole = f"{self.done} of {self.runs} runs{left_of(self.budget)}"
        self._say(f"{outcome.job.title}: {ended(outcome)} ({whole})")

    def _say(self, line: str) -> None:
        self.heard = time.monotonic()
        print(line, file=sys.stderr, flush=True)


class Bars:
    """A bar for all runs, and one for the rounds of each job that runs."""

    def __init__(self, runs: int, budget: Budget, progress: Progress) -> None:
        self.budget, self.progress = budget, progress
        self.whole = progress.add_task("all", total=runs, status="")
        self.tasks: dict[str, TaskID] = {}

    def begin(self, job: Job) -> None:
        """A bar of its own."""
        rounds = job.config.training.rounds
        self.tasks[job.title] = self.progress.add_task(escape(job.title), total=rounds, status="")

    def round(self, job: Job, record: RoundRecord) -> None:
        """The bar moves."""
        said = f"test {100 * record.test_accuracy:.1f}%"
        self.progress.update(self.tasks[job.title], completed=record.round, status=said)

    def end(self, outcome: Outcome) -> None:
        """The bar goes; what became of the job stays."""
        self.progress.remove_task(self.tasks.pop(outcome.job.title))
        self.progress.print(escape(f"{outcome.job.title}: {ended(outcome)}"))
        said = left_of(self.budget).removeprefix(", ")
        self.progress.update(self.whole, advance=outcome.finished, status=said)


@contextmanager
def shown(runs: int, budget: Budget) -> Iterator[Display]:
    """A display on standard error for so many runs that are missing."""
    if not sys.stderr.isatty():
        yield Lines(runs, budget)
        return
    with make_bars(TimeElapsedColumn()) as progress:
        yield Bars(runs, budget, progress)
