"""What a recipe still needs: jobs, each a config with the seeds that are missing."""

import json
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from fedfm.config import Config
from fedfm.core.errors import UserError
from fedfm.grid.budget import cost
from fedfm.grid.identity import digest
from fedfm.grid.recipe import Cell, Recipe, cells
from fedfm.grid.store import Store, Summary

logger = logging.getLogger(__name__)
FEATURES = ("nmi", "silhouette")
"""Measures that are taken of the best model, apart from the run."""


@dataclass(frozen=True)
class Job:
    """An experiment with some seeds, for one cell or for several that ask for the same."""

    recipe: str
    quick: bool
    labels: tuple[dict[str, str], ...]
    config: Config
    seeds: tuple[int, ...]
    measures: tuple[str, ...] = ()
    """Of the feature space, beside what every run reports."""

    @cached_property
    def digest(self) -> str:
        """Of the experiment."""
        return digest(self.config.as_toml())

    @property
    def keys(self) -> list[tuple[str, int]]:
        """Those of its results in the store."""
        return [(self.digest, seed) for seed in self.seeds]

    def satisfied_by(self, summary: Summary) -> bool:
        """Whether a result of the experiment has all that is asked for."""
        return set(self.measures) <= summary.measures.keys()

    @property
    def title(self) -> str:
        """For people."""
        name = " / ".join(self.labels[0].values())
        seeds = "seed" if len(self.seeds) == 1 else "seeds"
        return f"{name}, {seeds} {', '.join(map(str, self.seeds))}"

    @property
    def cost(self) -> float:
        """The work of one seed (budget.py)."""
        return cost(self.config)

    def folder(self, results: Path, seed: int) -> Path:
        """Where the run of a seed keeps its files."""
        return results / "runs" / f"{self.digest}-{seed}"

    def rounds_done(self, results: Path, seed: int) -> int:
        """How far the run of a seed has come."""
        manifest = self.folder(results, seed) / "checkpoint" / "manifest.json"
        try:
            return int(json.loads(manifest.read_text())["facts"]["round"])
        except (FileNotFoundError, ValueError, LookupError):
            return 0

    def work_left(self, results: Path) -> float:
        """The part of the work that is still to be done, in runs."""
        rounds = self.config.training.rounds
        return sum(1 - self.rounds_done(results, seed) / rounds for seed in self.seeds)


def all_jobs(
    recipe: Recipe, quick: bool, seeds: Sequence[int], overrides: Iterable[str], only: Sequence[str]
) -> list[Job]:
    """Every experiment of a recipe with every seed; cells that cannot be run are named."""
    found: dict[str, Job] = {}
    problems: dict[str, list[str]] = {}
    chosen = selected(list(cells(recipe, quick, overrides)), only)
    drawn = recipe.output == "features"
    extra = tuple(name for name in FEATURES if drawn or name in recipe.measures)
    for cell in chosen:
        try:
            job = Job(recipe.name, quick, (cell.labels,), cell.resolved, tuple(seeds), extra)
        except UserError as problem:
            problems.setdefault(str(problem), []).append(cell.title)
            continue
        twin = found.get(job.digest)
        labels = (*twin.labels, cell.labels) if twin else (cell.labels,)
        found[job.digest] = replace(job, labels=labels)
    _say(problems, recipe, bool(found))
    return list(found.values())


def _say(problems: dict[str, list[str]], recipe: Recipe, some_left: bool) -> None:
    """Name what keeps cells from being run, once."""
    if problems and not some_left:
        raise UserError(next(iter(problems)))
    for problem, titles in problems.items():
        more = f" and {len(titles) - 1} more are" if titles[1:] else " is"
        logger.warning("%s: %s%s left out: %s", recipe.name, titles[0], more, problem)


def selected(among: Sequence[Cell], only: Sequence[str]) -> list[Cell]:
    """The cells that `only` names: any of the texts for one axis, and all axes that it is about."""
    wanted: dict[str, set[str]] = {}
    for text in only:
        matches = _matches(text, among)
        if not matches:
            known = dict.fromkeys(label for cell in among for label in cell.labels.values())
            raise UserError(f"--only {text}: no label is like that; there are {', '.join(known)}")
        for axis, label in matches:
            wanted.setdefault(axis, set()).add(label)
    return [c for c in among if all(c.labels[axis] in some for axis, some in wanted.items())]


def _matches(text: str, among: Iterable[Cell]) -> set[tuple[str, str]]:
    """(axis, label) of the label that is the text, or else of those that contain it."""
    labels = {item for cell in among for item in cell.labels.items()}
    tests: tuple[Callable[[str], bool], ...] = (
        lambda label: label.lower() == text.lower(),
        lambda label: text.lower() in label.lower(),
    )
    exact, containing = ({(a, label) for a, label in labels if test(label)} for test in tests)
    return exact or containing


def adopt(jobs: Iterable[Job], store: Store) -> None:
    """Take over results of other recipes, or of other cells, that are what these jobs would run."""
    there = store.summaries()
    by_key = {summary.key: summary for summary in there}
    places = {(summary.key, summary.place) for summary in there}
    wanted = [
        replace(by_key[key], recipe=job.recipe, quick=job.quick, cell=labels)
        for job in jobs
        for key in job.keys
        if key in by_key and job.satisfied_by(by_key[key])
        for labels in job.labels
    ]
    if new := [summary for summary in wanted if (summary.key, summary.place) not in places]:
        store.append(new)


def current(jobs: Sequence[Job], summaries: Iterable[Summary]) -> list[Summary]:
    """The results for a recipe's jobs; of each cell only those of its own config, if any."""
    own, recipes = {job.digest for job in jobs}, {(job.recipe, job.quick) for job in jobs}
    found = [each for each in summaries if (each.recipe, each.quick) in recipes]
    fresh = {each.place[:-1] for each in found if each.digest in own}
    kept = [each for each in found if each.digest in own or each.place[:-1] not in fresh]
    if len(kept) < len(found):
        logger.warning("%d results of other settings are not shown", len(found) - len(kept))
    return kept


def missing(jobs: Iterable[Job], summaries: Iterable[Summary]) -> list[Job]:
    """The jobs with the seeds that have no result, if any."""
    by_key = {summary.key: summary for summary in summaries}
    left = []
    for job in jobs:
        there = {key for key in job.keys if key in by_key and job.satisfied_by(by_key[key])}
        seeds = tuple(seed for digest, seed in job.keys if (digest, seed) not in there)
        if seeds:
            left.append(replace(job, seeds=seeds))
    return left


def in_order(jobs: Iterable[Job], results: Path, spread: bool = False) -> list[Job]:
    """Cheap jobs first; with `spread`, every cell that has least gets one seed before any others.

    That seed is the one that has come furthest.
    """
    ordered = sorted(jobs, key=lambda job: job.cost)
    if not spread:
        return ordered
    most, firsts, others = max((len(job.seeds) for job in ordered), default=0), [], []
    for job in ordered:
        if len(job.seeds) < most:
            others.append(job)
            continue
        first = max(job.seeds, key=lambda seed: (job.rounds_done(results, seed), -seed))
        rest = tuple(seed for seed in job.seeds if seed != first)
        firsts.append(replace(job, seeds=(first,)))
        others += [replace(job, seeds=rest)] if rest else []
    return firsts + others
