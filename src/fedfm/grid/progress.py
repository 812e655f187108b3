"""Show how a grid proceeds: a live bar on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.markup import escape
from rich.progress import Progress, TaskID, TimeElapsedColumn

from fedfm.grid.budget import Budget, format_duration
from fedfm.grid.jobs import Job
from fedfm.grid.runner import Display
from fedfm.grid.worker import JobOutcome
from fedfm.run.console import make_bars
from fedfm.run.records import RoundRecord


def describe_outcome(outcome: JobOutcome) -> str:
    """Describe how a job ended."""
    if outcome.problem:
        return f"failed: {outcome.problem}"
    if outcome.stopped:
        return "stopped after a round; can be resumed"
    if not outcome.finished:
        return "being run elsewhere" if outcome.elsewhere else "was there already"
    return f"done in {format_duration(outcome.seconds)}"


def describe_time_left(budget: Budget) -> str:
    """Describe how much of a limited budget is left."""
    return f", {format_duration(budget.left)} left of the budget" if budget.limited else ""


QUIET = 30.0
"""Seconds after which plain lines give a sign of life."""


class LineDisplay(Display):
    """Print a line when a job begins and ends, and sometimes in between."""

    def __init__(self, runs: int, budget: Budget) -> None:
        self.runs, self.budget, self.done = runs, budget, 0
        self.last_line = time.monotonic()

    def begin(self, job: Job) -> None:
        """Print the job's title."""
        self._print(f"{job.title} ...")

    def round(self, job: Job, record: RoundRecord) -> None:
        """Print the round, at most every `QUIET` seconds."""
        if time.monotonic() - self.last_line >= QUIET:
            rounds, test = job.config.training.rounds, 100 * record.test_accuracy
            self._print(f"{job.title}: round {record.round} of {rounds}, test {test:.1f}%")

    def end(self, outcome: JobOutcome) -> None:
        """Print the outcome, and how many runs are done."""
        self.done += outcome.finished
        whole = f"{self.done} of {self.runs} runs{describe_time_left(self.budget)}"
        self._print(f"{outcome.job.title}: {describe_outcome(outcome)} ({whole})")

    def _print(self, line: str) -> None:
        self.last_line = time.monotonic()
        print(line, file=sys.stderr, flush=True)


class BarDisplay(Display):
    """Show a bar for all runs, and one for the rounds of each running job."""

    def __init__(self, runs: int, budget: Budget, progress: Progress) -> None:
        self.budget, self.progress = budget, progress
        self.whole = progress.add_task("all", total=runs, status="")
        self.tasks: dict[str, TaskID] = {}

    def begin(self, job: Job) -> None:
        """Add a bar for the job."""
        rounds = job.config.training.rounds
        self.tasks[job.title] = self.progress.add_task(escape(job.title), total=rounds, status="")

    def round(self, job: Job, record: RoundRecord) -> None:
        """Advance the job's bar."""
        status = f"test {100 * record.test_accuracy:.1f}%"
        self.progress.update(self.tasks[job.title], completed=record.round, status=status)

    def end(self, outcome: JobOutcome) -> None:
        """Remove the job's bar, and print its outcome."""
        self.progress.remove_task(self.tasks.pop(outcome.job.title))
        self.progress.print(escape(f"{outcome.job.title}: {describe_outcome(outcome)}"))
        left = describe_time_left(self.budget).removeprefix(", ")
        self.progress.update(self.whole, advance=outcome.finished, status=left)


@contextmanager
def open_display(runs: int, budget: Budget) -> Iterator[Display]:
    """Show the progress of `runs` missing runs on standard error."""
    if not sys.stderr.isatty():
        yield LineDisplay(runs, budget)
        return
    with make_bars(TimeElapsedColumn()) as progress:
        yield BarDisplay(runs, budget, progress)
