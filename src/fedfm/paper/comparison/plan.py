"""The plan of the comparison: which runs are made, in which order."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedfm.grid.jobs import Job, plan_jobs, select_current
from fedfm.grid.store import Store, Summary
from fedfm.grid.sweep import mean_of
from fedfm.paper.catalogue import load_recipe, read_shared
from fedfm.paper.comparison.tuning import Tuned, use_choices
from fedfm.report.tables.build import build_table
from fedfm.report.tables.table import Table

COMPARED = "field"
"""The recipe whose results rank the methods."""
METHOD = "method"
"""The axis of the methods."""


@dataclass(frozen=True)
class ComparisonStep:
    """Runs that belong together, in the order of the plan."""

    recipe: str
    only: Sequence[str] = ()
    """Texts of labels; reduced recipes have other labels, of which all are run."""
    seeds: Sequence[int] = (0,)
    best: int = 0
    """Only so many methods, the best by validation with the first seed; 0: all."""
    always: Sequence[str] = ()
    """Methods beside the best."""

    @property
    def title(self) -> str:
        """The recipe, the seeds and what of it, for people."""
        words = [*self.only, *([f"the best {self.best}"] if self.best else []), *self.always]
        seeds = "seed" if len(self.seeds) == 1 else "seeds"
        return ", ".join([self.recipe, *words, f"{seeds} {' and '.join(map(str, self.seeds))}"])


@dataclass(frozen=True)
class ResultsSoFar:
    """The results so far, and the options of the command line that say what is run."""

    summaries: Sequence[Summary]
    overrides: Sequence[str] = ()
    quick: bool = False

    def tune(self, name: str) -> Tuned:
        """Return a recipe with the settings that were chosen for it."""
        return use_choices(load_recipe(name), self.summaries, self.overrides, self.quick)

    def plan(self, tuned: Tuned, seeds: Sequence[int], only: Sequence[str]) -> list[Job]:
        """Return jobs of one run each, without those that wait for settings."""
        several = (
            plan_jobs(tuned.recipe, self.quick, [seed], self.overrides, only) for seed in seeds
        )
        return tuned.select_ready(job for jobs in several for job in jobs)

    def rank_methods(self, only: Sequence[str], seed: int = 0) -> list[str]:
        """Return the compared methods, the best first; [] until all have been run."""
        tuned = self.tune(COMPARED)
        jobs = plan_jobs(tuned.recipe, self.quick, [seed], self.overrides, only)
        values = {job.labels[0][METHOD]: mean_of(job, self.summaries) for job in jobs}
        known = {label: value for label, value in values.items() if value is not None}
        if tuned.waiting or len(known) < len(values):
            return []
        return sorted(known, key=lambda label: -known[label])


def plan_step(step: ComparisonStep, now: ResultsSoFar) -> list[Job]:
    """Return the jobs of a step as far as they are known; some wait for results of others."""
    tuned, only = now.tune(step.recipe), [] if now.quick else [*step.only]
    if step.best:
        ranked = now.rank_methods(only)
        there = [label for label in ranked if label in tuned.recipe.axes[METHOD]]
        if now.quick:  # the reduced recipe may have fewer methods
            there = [label for label in there if label in tuned.recipe.reduced.axes[METHOD]]
        if not there:
            return []
        only += dict.fromkeys([*there[: step.best], *step.always])
    return now.plan(tuned, step.seeds, only)


def load_steps() -> list[ComparisonStep]:
    """Return the plan that ships with the package."""
    return [ComparisonStep(**each) for each in read_shared("field")["steps"]]


def build_field_table(name: str, results: Path, overrides: Sequence[str]) -> tuple[Tuned, Table]:
    """Return a recipe with its choices, and its table of runs with exactly these settings."""
    summaries = Store(results).summaries()
    tuned = use_choices(load_recipe(name), summaries, overrides)
    jobs = plan_jobs(tuned.recipe, False, range(tuned.recipe.seeds), overrides, ())
    ready = tuned.select_ready(jobs)
    digests = {job.digest for job in ready}
    exact = [each for each in select_current(ready, summaries) if each.digest in digests]
    return tuned, build_table(tuned.recipe, exact)
