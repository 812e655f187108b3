"""The stages of the reproduction: what each step of the plan still needs when its turn comes."""

import json
import logging
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedfm.config import override
from fedfm.core.errors import UserError, require
from fedfm.core.files import write_atomically
from fedfm.grid.jobs import Job, find_missing, plan_jobs, select_current
from fedfm.grid.recipe import Recipe
from fedfm.grid.store import DRAWN_FILE, Store
from fedfm.paper.catalogue import load_recipe, read_settings
from fedfm.paper.claims import UNDECIDED, judge_claims
from fedfm.paper.plan import ReproductionPlan, ReproductionStep, build_tables
from fedfm.paper.settings import CHOICES, list_settings_files
from fedfm.report.tables.build import build_table
from fedfm.report.tables.tuned_settings import extend_choice, write_choice

logger = logging.getLogger(__name__)
UNTRAINED = ("partitions", "clients")
"""Outputs that are drawn at once, without runs of the grid."""


@dataclass(frozen=True)
class Stages:
    """The stages of a plan, in order; what one step chooses, the next ones use."""

    plan: ReproductionPlan
    results: Path
    quick: bool
    given: Sequence[str]
    """The user's changes, beside the settings that the folder of results has."""
    items: Sequence[int] = ()
    """The groups of steps to run; by default all."""

    @property
    def changes(self) -> list[str]:
        """Return the settings of all runs, as far as they are chosen by now."""
        return [*read_settings(list_settings_files(self.results, self.quick)), *self.given]

    @property
    def steps(self) -> list[ReproductionStep]:
        """Return the steps of the chosen groups."""
        known = sorted({step.item for step in self.plan.steps})
        for item in self.items:
            require(item in known, f"--item is one of {', '.join(map(str, known))}, not {item}")
        return [step for step in self.plan.steps if not self.items or step.item in self.items]

    def count_missing(self) -> int:
        """Return how many runs are missing, of the steps that wait for no result."""
        steps = [step for step in self.steps if not step.undecided and not _is_drawn(step)]
        return len({key for step in steps for job in self._missing(step) for key in job.keys})

    def list_missing(self) -> list[Job]:
        """Return the jobs that are missing now, step by step."""
        steps = [step for step in self.steps if not _is_drawn(step) and not self._waits(step)]
        return [job for step in steps for job in self._missing(step)]

    def __iter__(self) -> Iterator[list[Job]]:
        """Yield the missing jobs of every step that can run, when its turn comes."""
        for step in self.steps:
            if self._waits(step):
                print(
                    f"{step.recipe} waits for settings that `{' or '.join(CHOICES)}` chooses, or "
                    "for yours: --with FILE",
                    file=sys.stderr,
                )
            elif _is_drawn(step):
                self._draw(load_recipe(step.recipe))
            else:
                yield self._missing(step)
                if load_recipe(step.recipe).output == "choice":
                    yield from self._choose(load_recipe(step.recipe))

    def _waits(self, step: ReproductionStep) -> bool:
        """Return whether settings that a step uses are not chosen yet, for all or for one label."""
        changes = [change for change in self.changes if not change.startswith("only.")]
        if not step.tuned or all(override(change)[0][0] != "method" for change in changes):
            return step.tuned
        labels = {label for axis in load_recipe(step.recipe).axes.values() for label in axis}
        chosen_for = {load_recipe(name).chosen_for for name in CHOICES} & labels
        return any(
            not any(change.startswith(f"only.{label}.") for change in self.changes)
            for label in chosen_for
        )

    def _missing(self, step: ReproductionStep) -> list[Job]:
        jobs = step.jobs(self.quick, step.seeds, self.changes)
        if step.undecided:
            cells = self._list_undecided(step)
            jobs = [job for job in jobs if any(labels in cells for labels in job.labels)]
        return find_missing(jobs, Store(self.results).summaries())

    def _list_undecided(self, step: ReproductionStep) -> list[dict[str, str]]:
        """Return the labels of the recipe's cells on which a verdict with few seeds hangs."""
        if self.quick:
            return []
        tables = build_tables(self.plan, self.results, self.changes)
        claims = [claim for claim in self.plan.claims if claim.recipe == step.recipe]
        return [
            dict(entry.labels)
            for result in judge_claims(claims, tables)
            if result.outcome == UNDECIDED and len(result.seeds) < step.seeds
            for entry in (result.better, *result.rivals)
        ]

    def _choose(self, recipe: Recipe) -> Iterator[list[Job]]:
        """Yield the jobs of values beyond a range that a choice needs, and write the choice."""
        store = Store(self.results)
        for _ in range(2):
            jobs = plan_jobs(recipe, self.quick, range(recipe.seeds), self.changes, ())
            table = build_table(recipe, select_current(jobs, store.summaries()), self.quick)
            if find_missing(jobs, store.summaries()):
                return
            extended = recipe if self.quick else extend_choice(recipe, table)
            if extended.axes == recipe.axes:
                write_choice(recipe, table, self.results)
                return
            recipe = extended
            jobs = plan_jobs(recipe, False, range(recipe.seeds), self.changes, ())
            yield find_missing(jobs, store.summaries())

    def _draw(self, recipe: Recipe) -> None:
        path = self.results / recipe.name / DRAWN_FILE
        if self.quick or not path.exists():
            try:
                draw_untrained(recipe, self.quick, self.changes, self.results)
            except UserError as problem:
                logger.warning("%s is not drawn: %s", recipe.name, problem)


def _is_drawn(step: ReproductionStep) -> bool:
    return load_recipe(step.recipe).output in UNTRAINED


def draw_untrained(
    recipe: Recipe, quick: bool, changes: Sequence[str], results: Path
) -> list[dict[str, object]]:
    """Draw partitions, or the local models of two clients; keep and return what they show."""
    from fedfm.paper.pictures import draw_local_models, draw_partitions

    draw = draw_partitions if recipe.output == "partitions" else draw_local_models
    rows = list(draw(recipe, quick, changes, results))
    if not quick:
        kept = [row | {"picture": Path(str(row["picture"])).name} for row in rows]
        text = json.dumps(kept, indent=2) + "\n"
        write_atomically(results / recipe.name / DRAWN_FILE, text.encode())
    return rows
