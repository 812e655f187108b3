"""One job in one process: its runs are trained together, and their summaries go to the store."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf
from pathlib import Path

import torch

from fedfm.config import Config, DataConfig
from fedfm.core.errors import UserError, require
from fedfm.core.locks import lock
from fedfm.data.dataset import Dataset
from fedfm.grid.budget import Budget
from fedfm.grid.harvest import summary_of
from fedfm.grid.jobs import Job, missing
from fedfm.grid.store import Store, Summary
from fedfm.plugins import load_plugins
from fedfm.run.folder import finished
from fedfm.run.records import RoundRecord
from fedfm.run.runner import run_configs

logger = logging.getLogger(__name__)
THREADS = torch.get_num_threads()
"""PyTorch's default, for networks that are not small."""
Told = Callable[[RoundRecord], None]
"""Hears of every round of a job's first run."""


class Stopped(Exception):
    """The time is over or the user wants to stop."""


@dataclass(frozen=True)
class Outcome:
    """How a job ended."""

    job: Job
    finished: int = 0
    """Runs whose results are in the store now."""
    elsewhere: int = 0
    """Runs that another runner is at."""
    stopped: bool = False
    problem: str = ""
    seconds: float = 0.0


def work(
    job: Job,
    results: Path,
    budget: Budget,
    threads: int = 0,
    told: Told | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Run what a job still needs; whatever goes wrong with it is in the outcome."""
    began = time.perf_counter()
    load_plugins()
    with claimed(job, results) as own:
        outcome = Outcome(job, elsewhere=len(job.seeds) - len(own))
        left = replace(job, seeds=_left(job, own, results))
        fresh = not any(left.folder(results, seed).exists() for seed in left.seeds)
        try:
            try:
                _run(left, results, budget, threads, told, stop)
            finally:  # seeds may have finished that others did not keep from it
                outcome = replace(
                    outcome, finished=_reported(left, results, began if fresh else None)
                )
        except Stopped:
            outcome = replace(outcome, stopped=True)
        except (UserError, torch.OutOfMemoryError) as problem:
            outcome = replace(outcome, problem=str(problem))
    return replace(outcome, seconds=time.perf_counter() - began)


@contextmanager
def claimed(job: Job, results: Path) -> Iterator[tuple[int, ...]]:
    """The seeds that no other runner is at; nobody else gets them meanwhile."""
    folder = results / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    own = []
    with ExitStack() as held:
        for seed in job.seeds:
            file = held.enter_context((folder / f"{job.digest}-{seed}").open("w"))
            with suppress(BlockingIOError):
                held.enter_context(lock(file, wait=False))
                own.append(seed)
        yield tuple(own)


def _left(job: Job, own: tuple[int, ...], results: Path) -> tuple[int, ...]:
    """The seeds without a result by now; the store is read only if another runner was here."""
    ended = tuple(seed for seed in own if finished(job.folder(results, seed)))
    if not ended:
        return own
    left = missing([job], Store(results).summaries())
    unrecorded = {seed for part in left for seed in part.seeds}
    return tuple(seed for seed in own if seed not in ended or seed in unrecorded)


def _run(
    job: Job,
    results: Path,
    budget: Budget,
    threads: int,
    told: Told | None,
    stop: Callable[[], bool],
) -> None:
    """Every round that is left of the runs that are not finished."""
    folders = {seed: job.folder(results, seed) for seed in job.seeds}
    seeds = [seed for seed, folder in folders.items() if not finished(folder)]
    if not seeds:
        return
    torch.set_num_threads(threads or THREADS)
    every = job.config.checkpoint_every
    watch = Watch(len(seeds), job.config.training.rounds, every, budget, stop, told)
    run_configs(
        [job.config.with_seed(seed) for seed in seeds],
        outs=[folders[seed] for seed in seeds],
        watchers=[watch] * len(seeds),
        data=_dataset(job.config.data),
        resume=True,
    )


@lru_cache(maxsize=2)
def _dataset(data: DataConfig) -> Dataset:
    """The data set, read once for all jobs in a row that use it."""
    from fedfm.run.prepare import load_data

    return load_data(Config(data=data))


@dataclass
class Watch:
    """Shows and stops runs that are trained together, when all of them have saved a round."""

    seeds: int
    of_all: int
    every: int
    """Rounds between two checkpoints."""
    budget: Budget
    stop: Callable[[], bool]
    told: Told | None
    fastest: float = inf
    """Seconds of the fastest round."""
    seen: int = 0
    """The last round."""

    def __call__(self, record: RoundRecord) -> None:
        """A round of one of the runs; the first to have it speaks for all, whoever is left."""
        if record.round == self.seen:
            return
        self.seen = record.round
        if self.told:
            self.told(record)
        if self._enough(record):
            raise Stopped

    def _enough(self, record: RoundRecord) -> bool:
        """Whether to stop after a round: a saved one, with no time to save another.

        Where half a job is worth nothing, it stops if its first tenth says that it cannot end.
        """
        left, saved = self.of_all - record.round, record.round % self.every == 0
        another = record.seconds * self.seeds
        if self.budget.whole:
            return left > 0 and (self.stop() or self._hopeless(record, left))
        ends = self.stop() or self.budget.left < another * min(self.every, left)
        return left > 0 and saved and ends

    def _hopeless(self, record: RoundRecord, left: int) -> bool:
        """Whether it cannot end in time, by its fastest round: compilation is in the first."""
        compiled, self.fastest = self.fastest < inf, min(self.fastest, record.seconds)
        early = record.round <= max(2, self.of_all / 10)
        return compiled and early and self.budget.left < self.fastest * self.seeds * left


def _reported(job: Job, results: Path, began: float | None) -> int:
    """Add the finished runs to the store, for every cell that asked for them; how many there are.

    `began` is None where it is not known how long they took.
    """
    ended = [seed for seed in job.seeds if finished(job.folder(results, seed))]
    if not ended:
        return 0
    summaries = [_summary(job, results, seed) for seed in ended]
    runs = 0 if began is None else len(ended)
    clock = 0.0 if began is None else (time.perf_counter() - began) / runs
    Store(results).append(
        replace(
            summary, recipe=job.recipe, quick=job.quick, cell=labels, clock=clock, together=runs
        )
        for summary in summaries
        for labels in job.labels
    )
    return len(ended)


def _summary(job: Job, results: Path, seed: int) -> Summary:
    folder = job.folder(results, seed)
    found = summary_of(folder, results)
    if job.satisfied_by(found):
        return found
    require(
        (folder / "model.safetensors").exists(),
        f"{folder} has no model to measure: merge with --models, or remove it to run it again",
    )
    try:
        from fedfm.grid.points import write_measures

        return replace(found, measures=write_measures(folder, _dataset(job.config.data)))
    except ImportError as problem:  # the run itself is worth keeping
        logger.warning("%s is not measured: %s", folder, problem)
        return found
