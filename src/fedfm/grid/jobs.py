"""Jobs: what a recipe still needs, each a config with the seeds that are missing."""

import json
import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from fedfm.config import Config
from fedfm.core.errors import UserError
from fedfm.grid.budget import estimate_cost
from fedfm.grid.identity import digest
from fedfm.grid.recipe import Cell, Recipe, expand_cells
from fedfm.grid.store import Summary

logger = logging.getLogger(__name__)
FEATURE_METRICS = ("nmi", "silhouette")
"""Measures that are taken of the best model, apart from the run."""


@dataclass(frozen=True)
class Job:
    """A config with some seeds, for one cell or for several cells that share it."""

    recipe: str
    quick: bool
    labels: tuple[dict[str, str], ...]
    config: Config
    seeds: tuple[int, ...]
    measures: tuple[str, ...] = ()
    """Of the feature space, beside what every run reports."""

    @cached_property
    def digest(self) -> str:
        """Return the digest of the config."""
        return digest(self.config.as_toml())

    @property
    def keys(self) -> list[tuple[str, int]]:
        """Return the keys that its results have in the store."""
        return [(self.digest, seed) for seed in self.seeds]

    def satisfied_by(self, summary: Summary) -> bool:
        """Return whether a result has all measures that the job asks for."""
        return set(self.measures) <= summary.measures.keys()

    @property
    def title(self) -> str:
        """Return the labels and seeds, for people."""
        name = " / ".join(self.labels[0].values())
        seeds = "seed" if len(self.seeds) == 1 else "seeds"
        return f"{name}, {seeds} {', '.join(map(str, self.seeds))}"

    @property
    def cost(self) -> float:
        """Return the work of one seed (budget.py)."""
        return estimate_cost(self.config)

    def folder(self, results: Path, seed: int) -> Path:
        """Return the folder of a seed's run."""
        return results / "runs" / f"{self.digest}-{seed}"

    def rounds_done(self, results: Path, seed: int) -> int:
        """Return how many rounds of a seed's run have been saved."""
        manifest = self.folder(results, seed) / "checkpoint" / "manifest.json"
        try:
            return int(json.loads(manifest.read_text())["facts"]["round"])
        except (FileNotFoundError, ValueError, LookupError):
            return 0

    def work_left(self, results: Path) -> float:
        """Return the work that remains, in runs."""
        rounds = self.config.training.rounds
        return sum(1 - self.rounds_done(results, seed) / rounds for seed in self.seeds)


def plan_jobs(
    recipe: Recipe, quick: bool, seeds: Sequence[int], overrides: Iterable[str], only: Sequence[str]
) -> list[Job]:
    """Return the jobs of all cells of a recipe; warn of cells that cannot be run."""
    jobs: dict[str, Job] = {}
    problems: dict[str, list[str]] = {}
    chosen = select_cells(list(expand_cells(recipe, quick, overrides)), only)
    drawn = recipe.output == "features"
    extra = tuple(name for name in FEATURE_METRICS if drawn or name in recipe.measures)
    for cell in chosen:
        try:
            job = Job(recipe.name, quick, (cell.labels,), cell.resolved, tuple(seeds), extra)
        except UserError as problem:
            problems.setdefault(str(problem), []).append(cell.title)
            continue
        twin = jobs.get(job.digest)
        labels = (*twin.labels, cell.labels) if twin else (cell.labels,)
        jobs[job.digest] = replace(job, labels=labels)
    _report_problems(problems, recipe, bool(jobs))
    return list(jobs.values())


def _report_problems(problems: dict[str, list[str]], recipe: Recipe, some_left: bool) -> None:
    """Name what keeps cells from being run, once."""
    if problems and not some_left:
        raise UserError(next(iter(problems)))
    for problem, titles in problems.items():
        more = f" and {len(titles) - 1} more are" if titles[1:] else " is"
        logger.warning("%s: %s%s left out: %s", recipe.name, titles[0], more, problem)


def select_cells(among: Sequence[Cell], only: Sequence[str]) -> list[Cell]:
    """Return the cells whose labels match `only`: any text of an axis, and all axes named."""
    wanted: dict[str, set[str]] = {}
    for text in only:
        matches = _match_labels(text, among)
        if not matches:
            known = dict.fromkeys(label for cell in among for label in cell.labels.values())
            raise UserError(f"--only {text}: no label is like that; there are {', '.join(known)}")
        for axis, label in matches:
            wanted.setdefault(axis, set()).add(label)
    return [c for c in among if all(c.labels[axis] in some for axis, some in wanted.items())]


def _match_labels(text: str, among: Iterable[Cell]) -> set[tuple[str, str]]:
    """Return (axis, label) of the label equal to `text`, or else of those that contain it."""
    labels = {item for cell in among for item in cell.labels.items()}
    containing = {item for item in labels if text.lower() in item[1].lower()}
    return {item for item in containing if text.lower() == item[1].lower()} or containing


def select_current(jobs: Sequence[Job], summaries: Sequence[Summary]) -> list[Summary]:
    """Return the results that fill the cells of some jobs.

    A result counts whichever recipe or cell it was run for. Results of other settings are shown
    only in cells that have no result of their own config.
    """
    digests = {job.digest for job in jobs}
    recipes = {(job.recipe, job.quick) for job in jobs}
    known = [each for each in summaries if (each.recipe, each.quick) in recipes]
    known += _adopt(jobs, summaries, {(each.key, each.place) for each in known})
    filled = {each.place[:-1] for each in known if each.digest in digests}
    kept = [each for each in known if each.digest in digests or each.place[:-1] not in filled]
    if len(kept) < len(known):
        logger.warning("%d results of other settings are not shown", len(known) - len(kept))
    return kept


def _adopt(
    jobs: Iterable[Job], summaries: Iterable[Summary], places: Collection[Any]
) -> list[Summary]:
    """Return results of other recipes or cells under the labels of the jobs that ask for them."""
    by_key = _index_by_key(summaries)
    adopted = [
        replace(by_key[key], recipe=job.recipe, quick=job.quick, cell=labels)
        for job in jobs
        for key in job.keys
        if key in by_key and job.satisfied_by(by_key[key])
        for labels in job.labels
    ]
    return [each for each in adopted if (each.key, each.place) not in places]


def _index_by_key(summaries: Iterable[Summary]) -> dict[tuple[str, int], Summary]:
    """Return the results by config and seed; of several the last one with the most measures."""
    by_key: dict[tuple[str, int], Summary] = {}
    for each in summaries:
        other = by_key.setdefault(each.key, each)
        if len(each.measures) >= len(other.measures):
            by_key[each.key] = each
    return by_key


def find_missing(jobs: Iterable[Job], summaries: Iterable[Summary]) -> list[Job]:
    """Return the jobs that lack results, each with the seeds that it lacks."""
    by_key = _index_by_key(summaries)
    left = []
    for job in jobs:
        done = {key for key in job.keys if key in by_key and job.satisfied_by(by_key[key])}
        seeds = tuple(seed for digest, seed in job.keys if (digest, seed) not in done)
        if seeds:
            left.append(replace(job, seeds=seeds))
    return left


def sort_jobs(jobs: Iterable[Job], results: Path, spread: bool = False) -> list[Job]:
    """Sort cheap jobs first; with `spread`, give the emptiest cells one seed each before others.

    That seed is the one with the most saved rounds.
    """
    ordered = sorted(jobs, key=lambda job: job.cost)
    if not spread:
        return ordered
    most, firsts, others = max((len(job.seeds) for job in ordered), default=0), [], []
    for job in ordered:
        rest = job.seeds
        if len(job.seeds) == most:
            first = max(job.seeds, key=lambda seed: (job.rounds_done(results, seed), -seed))
            firsts.append(replace(job, seeds=(first,)))
            rest = tuple(seed for seed in job.seeds if seed != first)
        others += [replace(job, seeds=rest)] if rest else []
    return firsts + others
