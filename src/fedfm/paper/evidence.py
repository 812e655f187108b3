"""The tables of the reproduction, filled from one folder of results."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from fedfm.grid.store import DRAWN_FILE, Summary
from fedfm.paper.catalogue import read_settings
from fedfm.paper.claims import Choice, ClaimResult, judge_claims
from fedfm.paper.plan import ReproductionPlan, build_tables
from fedfm.paper.settings import list_settings_files, read_choice
from fedfm.report.tables.statistics import get_table_metric
from fedfm.report.tables.table import Entry, Table


@dataclass(frozen=True)
class Evidence:
    """What one folder of results says about the plan."""

    folder: Path
    tables: Mapping[str, Table]
    """By recipe."""
    plan: ReproductionPlan

    @staticmethod
    def of(plan: ReproductionPlan, folder: Path, overrides: Sequence[str] = ()) -> "Evidence":
        """Read a folder; its own settings come before the given ones."""
        changes = [*read_settings(list_settings_files(folder)), *overrides]
        return Evidence(folder, build_tables(plan, folder, changes), plan)

    @property
    def runs(self) -> list[Summary]:
        """Return all runs behind the tables, each once."""
        entries = (e for table in self.tables.values() for e in table.entries.values())
        return list({run.key: run for entry in entries for run in entry.runs}.values())

    @cached_property
    def choice(self) -> Choice:
        """Return the settings that were chosen on validation."""
        return read_choice(self.folder)

    @cached_property
    def claim_results(self) -> list[ClaimResult]:
        """Return a verdict on every claim, in the plan's order."""
        return list(judge_claims(self.plan.claims, self.tables, self.choice))

    def count(self, recipe: str) -> int:
        """Return how many entries of a recipe's table have runs."""
        return sum(bool(entry.runs) for entry in self.tables[recipe].entries.values())

    def has_drawn(self, recipe: str) -> bool:
        """Return whether pictures of a recipe that needs no runs have been drawn."""
        return (self.folder / recipe / DRAWN_FILE).exists()

    def find(self, recipe: str, title: str, measure: str = "") -> Entry:
        """Return the entry of the cell with these labels, "A / B" in the axes' order."""
        table = self.tables[recipe]
        wanted = get_table_metric(measure) if measure else table.columns[0].measure
        return next(
            entry
            for entry in table.entries.values()
            if entry.measure == wanted and make_title(entry) == title
        )


def make_title(entry: Entry) -> str:
    """Return the labels of an entry's cell in a line."""
    return " / ".join(entry.labels.values())


def make_anchor(recipe: str, title: str) -> str:
    """Return the name of a cell in links."""
    return re.sub(r"[^a-z0-9.]+", "-", f"{recipe} {title}".lower()).strip("-")
