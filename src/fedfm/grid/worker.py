"""Run one job in one process: train its runs together and append their summaries."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from math import inf
from pathlib import Path

import torch

from fedfm.config import Config, DataConfig
from fedfm.core.errors import UserError, require
from fedfm.core.locks import lock
from fedfm.data.dataset import Dataset
from fedfm.grid.budget import Budget
from fedfm.grid.jobs import Job, find_missing
from fedfm.grid.store import POINTS_FILE, Store, Summary, read_summary
from fedfm.plugins import load_plugins
from fedfm.run.folder import is_finished
from fedfm.run.records import RoundRecord
from fedfm.run.runner import run_configs

logger = logging.getLogger(__name__)
THREADS = torch.get_num_threads()
"""PyTorch's default, for networks that are not small."""
OnRound = Callable[[RoundRecord], None]
"""Called with every round of a job's first run."""


class JobStopped(Exception):
    """The time is over, or the user wants to stop."""


@dataclass(frozen=True)
class JobOutcome:
    """How a job ended."""

    job: Job
    finished: int = 0
    """Runs whose results are in the store now."""
    elsewhere: int = 0
    """Runs that another runner works on."""
    stopped: bool = False
    problem: str = ""
    seconds: float = 0.0


def run_job(
    job: Job,
    results: Path,
    budget: Budget,
    threads: int = 0,
    on_round: OnRound | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> JobOutcome:
    """Run what a job still needs; errors are in the outcome."""
    began = time.perf_counter()
    load_plugins()
    with claim_seeds(job, results) as claimed:
        outcome = JobOutcome(job, elsewhere=len(job.seeds) - len(claimed))
        left = replace(job, seeds=_find_unfinished(job, claimed, results))
        fresh = not any(left.folder(results, seed).exists() for seed in left.seeds)
        try:
            try:
                watch = partial(Watch, budget=budget, stop=stop, on_round=on_round)
                _run(left, results, threads, watch)
            finally:  # some seeds may have finished before another one failed
                outcome = replace(
                    outcome, finished=_record_finished(left, results, began if fresh else None)
                )
        except JobStopped:
            outcome = replace(outcome, stopped=True)
        except (UserError, torch.OutOfMemoryError) as problem:
            outcome = replace(outcome, problem=str(problem))
    return replace(outcome, seconds=time.perf_counter() - began)


@contextmanager
def claim_seeds(job: Job, results: Path) -> Iterator[tuple[int, ...]]:
    """Lock and yield the seeds that no other runner has locked."""
    folder = results / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    claimed = []
    with ExitStack() as held:
        for seed in job.seeds:
            file = held.enter_context((folder / f"{job.digest}-{seed}").open("w"))
            with suppress(BlockingIOError):
                held.enter_context(lock(file, wait=False))
                claimed.append(seed)
        yield tuple(claimed)


def _find_unfinished(job: Job, claimed: tuple[int, ...], results: Path) -> tuple[int, ...]:
    """Return the seeds without a result; read the store only if another runner was here."""
    ended = tuple(seed for seed in claimed if is_finished(job.folder(results, seed)))
    if not ended:
        return claimed
    left = find_missing([job], Store(results).summaries())
    unrecorded = {seed for part in left for seed in part.seeds}
    return tuple(seed for seed in claimed if seed not in ended or seed in unrecorded)


def _run(job: Job, results: Path, threads: int, make_watch: Callable[..., "Watch"]) -> None:
    """Run every round that is left of the runs that are not finished."""
    folders = {seed: job.folder(results, seed) for seed in job.seeds}
    seeds = [seed for seed, folder in folders.items() if not is_finished(folder)]
    if not seeds:
        return
    torch.set_num_threads(threads or THREADS)
    watch = make_watch(len(seeds), job.config.training.rounds, job.config.checkpoint_every)
    run_configs(
        [job.config.with_seed(seed) for seed in seeds],
        outs=[folders[seed] for seed in seeds],
        watchers=[watch] * len(seeds),
        data=_load_dataset(job.config.data),
        resume=True,
    )


@lru_cache(maxsize=2)
def _load_dataset(data: DataConfig) -> Dataset:
    """Return the data set, read once for all jobs in a row that use it."""
    from fedfm.run.prepare import load_data

    return load_data(Config(data=data))


@dataclass
class Watch:
    """Show runs that are trained together, and stop them once all have saved a round."""

    seeds: int
    of_all: int
    every: int
    """Rounds between two checkpoints; 0: there are none."""
    budget: Budget
    stop: Callable[[], bool]
    on_round: OnRound | None
    fastest: float = inf
    """Seconds of the fastest round."""
    seen: int = 0
    """The last round."""

    def __call__(self, record: RoundRecord) -> None:
        """Take a round; only the first run to reach it is shown."""
        if record.round == self.seen:
            return
        self.seen = record.round
        if self.on_round:
            self.on_round(record)
        if self._should_stop(record):
            raise JobStopped

    def _should_stop(self, record: RoundRecord) -> bool:
        """Return whether to stop: after a saved round, if there is no time to save another.

        A job that cannot be resumed stops if its first tenth shows that it cannot end in time.
        """
        left, another = self.of_all - record.round, record.seconds * self.seeds
        if self.budget.whole or not self.every:
            return left > 0 and (self.stop() or self._is_hopeless(record, left))
        saved = record.round % self.every == 0
        ends = self.stop() or self.budget.left < another * min(self.every, left)
        return left > 0 and saved and ends

    def _is_hopeless(self, record: RoundRecord, left: int) -> bool:
        """Return whether the job cannot end in time, judged by its fastest round."""
        compiled, self.fastest = self.fastest < inf, min(self.fastest, record.seconds)
        early = record.round <= max(2, self.of_all / 10)
        return compiled and early and self.budget.left < self.fastest * self.seeds * left


def _record_finished(job: Job, results: Path, began: float | None) -> int:
    """Append the finished runs for every cell that asked for them; return how many there are.

    `began` is None where it is unknown how long they took.
    """
    ended = [seed for seed in job.seeds if is_finished(job.folder(results, seed))]
    if not ended:
        return 0
    summaries = [_summarise(job, results, seed) for seed in ended]
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


def _summarise(job: Job, results: Path, seed: int) -> Summary:
    folder = job.folder(results, seed)
    summary = read_summary(folder, results)
    if job.satisfied_by(summary) and (not job.measures or (folder / POINTS_FILE).exists()):
        return summary
    require(
        (folder / "model.safetensors").exists(),
        f"{folder} has no model to measure: merge with --models, or remove it to run it again",
    )
    try:
        from fedfm.grid.feature_points import write_measures

        return replace(summary, measures=write_measures(folder, _load_dataset(job.config.data)))
    except ImportError as problem:  # the run itself is worth keeping
        logger.warning("%s is not measured: %s", folder, problem)
        return summary
