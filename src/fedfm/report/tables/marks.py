"""The marks in a table: the best of each column, and what differs from the baseline."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from fedfm.grid.recipe import Recipe
from fedfm.report.tables.statistics import paired_p, ranks
from fedfm.report.tables.table import Column, Comparison, Entries, Entry, Labels

BASELINE = "FedAvg"
TESTED = "test_accuracy"


def ranked(entries: Entries, columns: Iterable[Column]) -> Entries:
    """With the best and the second best of every column marked."""
    marked = dict(entries)
    for column in columns:
        own = {place: entry for place, entry in entries.items() if place[1] == column}
        found = ranks([entry.mean for entry in own.values()], column.measure)
        for (place, entry), rank in zip(own.items(), found, strict=True):
            marked[place] = replace(entry, rank=rank)
    return marked


def compared(entries: Entries, recipe: Recipe, rows: Sequence[Labels]) -> Entries:
    """With every row tested against the baseline's."""
    marked = dict(entries)
    for (row, column), entry in entries.items():
        against = baseline(recipe, rows, row)
        other = _in_row(entries, against, column)
        if other is None or against == row or column.measure.name != TESTED:
            continue
        if found := paired_p(entry.values, other.values):
            marked[row, column] = replace(entry, comparison=Comparison(*found))
    return marked


def baseline(recipe: Recipe, rows: Sequence[Labels], row: Labels) -> Labels:
    """FedAvg with the row's other labels; the first row where there is no FedAvg."""
    for n, axis in enumerate(recipe.rows):
        if BASELINE in recipe.axes[axis]:
            return (*row[:n], BASELINE, *row[n + 1 :])
    return rows[0]


def baseline_name(recipe: Recipe, rows: Sequence[Labels]) -> str:
    """The baseline in words."""
    named = any(BASELINE in recipe.axes[axis] for axis in recipe.rows)
    return BASELINE if named else " / ".join(rows[0])


def _in_row(entries: Entries, row: Labels, column: Column) -> Entry | None:
    """The entry of a row in a column, or the row's only one, which then stands for all columns."""
    own = [
        entry
        for (labels, other), entry in entries.items()
        if labels == row and other.measure == column.measure
    ]
    return entries.get((row, column)) or (own[0] if len(own) == 1 else None)
