"""The plan of the reproduction: what its document shows, what is run in which order, the claims."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

from fedfm.grid.jobs import Job, adopt, all_jobs, current, selected
from fedfm.grid.recipe import Recipe, cells
from fedfm.grid.store import Store
from fedfm.paper.catalogue import load_recipe, read_shared
from fedfm.report.tables.build import build
from fedfm.report.tables.table import Table

Places = Mapping[str, Sequence[str]]
"""Labels along some axes."""


@dataclass(frozen=True)
class Part:
    """A section of the document: a recipe, or some of its cells."""

    recipe: str
    only: Sequence[str] = ()

    @cached_property
    def known(self) -> Recipe:
        """The recipe, without the labels that it is not about."""
        recipe = load_recipe(self.recipe)
        chosen = [cell.labels for cell in selected(list(cells(recipe)), self.only)]
        axes = {
            axis: {
                label: own for label, own in known.items() if any(c[axis] == label for c in chosen)
            }
            for axis, known in recipe.axes.items()
        }
        return replace(recipe, axes=axes)

    def jobs(self, quick: bool, seeds: int | None, overrides: Iterable[str]) -> list[Job]:
        """All its runs."""
        recipe = load_recipe(self.recipe)
        only = () if quick else self.only  # which has labels of its own
        return all_jobs(recipe, quick, range(seeds or recipe.seeds), overrides, only)


@dataclass(frozen=True)
class Step(Part):
    """Runs that belong together in the order of the whole."""

    seeds: int = 1
    tuned: bool = False
    """Whether it is about methods whose settings are chosen first."""


@dataclass(frozen=True)
class Claim:
    """Something that the paper says of two cells, or of several pairs of them."""

    says: str
    recipe: str
    better: Places
    than: Places
    at: Places = field(default_factory=dict)
    measure: str = ""
    """By default the recipe's first."""
    best: bool = False
    """Whether the best of `than` is the one to beat, instead of each of them."""
    within: float = 0.0
    """So much worse is still as claimed."""


@dataclass(frozen=True)
class Plan:
    """Everything about the reproduction."""

    parts: tuple[Part, ...]
    steps: tuple[Step, ...]
    claims: tuple[Claim, ...]


def load_plan() -> Plan:
    """The plan that ships with the package."""
    found = read_shared("reproduction")
    return Plan(
        tuple(Part(**each) for each in found["parts"]),
        tuple(Step(**each) for each in found["steps"]),
        tuple(Claim(**each) for each in found["claims"]),
    )


def tables(
    plan: Plan, results: Path, overrides: Sequence[str], quick: bool = False
) -> dict[str, Table]:
    """The table of every part by its recipe's name, as far as there are results."""
    summaries, found = Store(results).summaries(), {}
    for part in plan.parts:
        jobs = part.jobs(quick, None, overrides)
        recipe = load_recipe(part.recipe) if quick else part.known
        found[part.recipe] = build(recipe, current(jobs, summaries), quick)
    return found


def adopted(plan: Plan, results: Path, overrides: Sequence[str], quick: bool = False) -> None:
    """Let every part have the runs that others made for it."""
    for part in plan.parts:
        if Store(results).path.exists():
            adopt(part.jobs(quick, None, overrides), Store(results))


def combinations(places: Places) -> list[dict[str, Any]]:
    """One label of every axis, in all ways."""
    return [dict(zip(places, labels, strict=True)) for labels in product(*places.values())]
