"""The plan of the reproduction: sections of its document, order of runs, claims."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, Literal

from fedfm.grid.jobs import Job, plan_jobs, select_cells, select_current
from fedfm.grid.recipe import Recipe, expand_cells
from fedfm.grid.store import Store, Summary
from fedfm.paper.catalogue import load_recipe, read_shared
from fedfm.report.tables.build import build_table
from fedfm.report.tables.table import Table
from fedfm.report.tables.tuned_settings import extend_choice, find_beyond

Places = Mapping[str, Sequence[str]]
"""Labels along some axes."""


@dataclass(frozen=True)
class Section:
    """A section of the document: a recipe, or some of its cells."""

    recipe: str
    only: Sequence[str] = ()
    ours: bool = False
    """Whether it is not a table or figure of the paper."""
    takes: Mapping[str, str] = field(default_factory=dict)
    """By the data's label, or "", what the missing cells take where finished runs do not tell."""

    @cached_property
    def selection(self) -> Recipe:
        """Return the recipe, without the labels that are not selected."""
        recipe = load_recipe(self.recipe)
        chosen = [cell.labels for cell in select_cells(list(expand_cells(recipe)), self.only)]
        axes = {
            axis: {
                label: settings
                for label, settings in labels.items()
                if any(cell[axis] == label for cell in chosen)
            }
            for axis, labels in recipe.axes.items()
        }
        return replace(recipe, axes=axes)

    def jobs(self, quick: bool, seeds: int | None, overrides: Iterable[str]) -> list[Job]:
        """Return all its jobs."""
        recipe = load_recipe(self.recipe)
        only = () if quick else self.only  # the reduced recipe has other labels
        return plan_jobs(recipe, quick, range(seeds or recipe.seeds), overrides, only)


@dataclass(frozen=True)
class ReproductionStep(Section):
    """Runs that belong together, in the order of the plan."""

    item: int = 0
    """The number of the group of steps that it belongs to."""
    seeds: int = 1
    tuned: bool = False
    """Whether it uses the settings that an earlier step chooses."""
    undecided: bool = False
    """Whether it has only the cells of claims that the runs so far leave undecided."""


@dataclass(frozen=True)
class Claim:
    """A claim of the paper about two cells, or about several pairs."""

    says: str
    recipe: str
    better: Places
    than: Places
    at: Places = field(default_factory=dict)
    measure: str = ""
    """By default the recipe's first."""
    than_recipe: str = ""
    """The recipe of the cells of `than`, if it is another one; `at` is not about these."""
    kind: Literal["better", "comparable"] = "better"
    """Whether `better` must be better, or differ by less than `within`."""
    best: bool = False
    """Whether the best of `than` is the one to beat, instead of each of them."""
    within: float = 0.0
    """In points: so much worse still counts as better, or so much either way as comparable."""


@dataclass(frozen=True)
class ReproductionPlan:
    """The plan of the reproduction."""

    parts: tuple[Section, ...]
    steps: tuple[ReproductionStep, ...]
    claims: tuple[Claim, ...]


def load_plan() -> ReproductionPlan:
    """Load the plan that ships with the package."""
    tables = read_shared("reproduction")
    return ReproductionPlan(
        tuple(Section(**each) for each in tables["parts"]),
        tuple(ReproductionStep(**each) for each in tables["steps"]),
        tuple(Claim(**each) for each in tables["claims"]),
    )


def build_tables(
    plan: ReproductionPlan, results: Path, overrides: Sequence[str], quick: bool = False
) -> dict[str, Table]:
    """Return the table of every section by recipe, as far as there are results."""
    summaries, tables = Store(results).summaries(), {}
    for part in plan.parts:
        recipe = load_recipe(part.recipe) if quick else part.selection
        jobs = part.jobs(quick, None, overrides)
        table = build_table(recipe, select_current(jobs, summaries), quick)
        tables[part.recipe] = add_beyond(table, recipe, summaries, overrides)
    return tables


def add_beyond(
    table: Table, recipe: Recipe, summaries: Sequence[Summary], overrides: Sequence[str]
) -> Table:
    """Return the table of a choice with the values beyond its range that it needs."""
    if table.quick or recipe.output != "choice" or not find_beyond(recipe, table):
        return table
    recipe = extend_choice(recipe, table)
    jobs = plan_jobs(recipe, False, range(recipe.seeds), overrides, ())
    return build_table(recipe, select_current(jobs, summaries))


def expand_places(places: Places) -> list[dict[str, Any]]:
    """Return all combinations of one label per axis."""
    return [dict(zip(places, labels, strict=True)) for labels in product(*places.values())]
