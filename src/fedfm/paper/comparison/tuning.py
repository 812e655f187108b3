"""Settings that a recipe takes from another one, which compares them on validation samples.

A label of the recipe that tunes is a label of the tuned one and, after a comma, what is tried:
"FedDyn, alpha = 0.1" is a candidate for "FedDyn", for "FedDyn, with warm-up" and for "with FedDyn".
"""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import NamedTuple

from fedfm.grid.changes import Settings, merge_settings
from fedfm.grid.jobs import Job, plan_jobs
from fedfm.grid.recipe import Recipe
from fedfm.grid.store import Summary
from fedfm.grid.sweep import mean_of
from fedfm.paper.catalogue import load_recipe

SEPARATOR, WITH = ", ", "with "
NUMBER = re.compile(r"(\w+) = [\d.]+").fullmatch


@dataclass(frozen=True)
class Candidate:
    """Settings that were tried for a label."""

    words: str
    """What was tried, as in "alpha = 0.1"."""
    settings: Settings
    value: float | None
    """The mean validation value over seeds; None: not run."""


@dataclass(frozen=True)
class Choice:
    """The candidates for a label."""

    candidates: tuple[Candidate, ...]

    @property
    def best(self) -> Candidate | None:
        """The best candidate, of equals the first; None until all of them have been run."""
        known = [(each.value, each) for each in self.candidates if each.value is not None]
        if len(known) < len(self.candidates):
            return None
        return max(known, key=lambda pair: pair[0])[1]

    @property
    def at_an_end(self) -> bool:
        """Whether the best one is the first or the last value of a range of one setting."""
        first, *_, last = self.candidates
        keys = {match and match[1] for match in (NUMBER(each.words) for each in self.candidates)}
        return None not in keys and len(keys) == 1 and self.best in (first, last)


Choices = dict[str, Choice]
"""By label."""


class Tuned(NamedTuple):
    """A recipe with the settings that were chosen for its labels."""

    recipe: Recipe
    choices: Choices
    waiting: Collection[str]
    """The labels whose candidates have not all been run."""

    def select_ready(self, jobs: Iterable[Job]) -> list[Job]:
        """Return the jobs without a label that waits for settings."""
        return [job for job in jobs if not self.list_waiting([job])]

    def list_waiting(self, jobs: Iterable[Job]) -> list[str]:
        """Return the labels of some jobs that wait for settings, each once."""
        labels = (label for job in jobs for cell in job.labels for label in cell.values())
        return [label for label in dict.fromkeys(labels) if label in self.waiting]


def use_choices(
    recipe: Recipe, summaries: Sequence[Summary], overrides: Sequence[str], quick: bool = False
) -> Tuned:
    """Return the recipe with chosen settings; reduced recipes and those without choices as is."""
    if quick or not recipe.tuned:
        return Tuned(recipe, {}, ())
    choices = collect_choices(load_recipe(recipe.tuned), summaries, overrides)
    axes, waiting = {axis: dict(labels) for axis, labels in recipe.axes.items()}, set()
    for labels in axes.values():
        for label in labels.keys() & _list_labels(recipe, choices):
            if chosen := choices[find_name(label)].best:
                labels[label] = merge_settings(labels[label], chosen.settings)
            else:
                waiting.add(label)
    return Tuned(replace(recipe, axes=axes), choices, waiting)


def _list_labels(recipe: Recipe, choices: Choices) -> set[str]:
    """Return the labels that there are candidates for."""
    every = (label for labels in recipe.axes.values() for label in labels)
    return {label for label in every if find_name(label) in choices}


def find_name(label: str) -> str:
    """Return the name of a label: what stands before a comma, and after "with"."""
    return label.split(SEPARATOR)[0].removeprefix(WITH)


def collect_choices(
    recipe: Recipe, summaries: Sequence[Summary], overrides: Iterable[str]
) -> Choices:
    """Return the candidates of every label, with the results of exactly these settings."""
    (axis,) = recipe.rows
    values: dict[str, list[float | None]] = {}
    for job in plan_jobs(recipe, False, range(recipe.seeds), overrides, ()):
        for labels in job.labels:
            values.setdefault(labels[axis], []).append(mean_of(job, summaries))
    choices: dict[str, list[Candidate]] = {}
    for label, several in values.items():
        words = label.removeprefix(find_name(label) + SEPARATOR)
        known = [value for value in several if value is not None]
        mean = fmean(known) if len(known) == len(several) else None
        candidate = Candidate(words, recipe.axes[axis][label], mean)
        choices.setdefault(find_name(label), []).append(candidate)
    return {name: Choice(tuple(candidates)) for name, candidates in choices.items()}
