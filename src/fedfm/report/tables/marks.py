"""Mark the best of each column, and significant differences from the baseline."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from fedfm.grid.recipe import Recipe
from fedfm.report.tables.statistics import compute_paired_p, rank_values
from fedfm.report.tables.table import Column, Comparison, Entries, Entry, Labels

BASELINE = "FedAvg"
TESTED = "test_accuracy"


def mark_ranks(entries: Entries, columns: Iterable[Column]) -> Entries:
    """Mark the best and the second best of every column."""
    marked = dict(entries)
    for column in columns:
        own = {place: entry for place, entry in entries.items() if place[1] == column}
        found = rank_values([entry.mean for entry in own.values()], column.measure)
        for (place, entry), rank in zip(own.items(), found, strict=True):
            marked[place] = replace(entry, rank=rank)
    return marked


def mark_comparisons(entries: Entries, recipe: Recipe, rows: Sequence[Labels]) -> Entries:
    """Test every row against the baseline."""
    marked = dict(entries)
    for (row, column), entry in entries.items():
        against = find_baseline(recipe, rows, row)
        other = _find_in_row(entries, against, column)
        if other is None or against == row or column.measure.name != TESTED:
            continue
        if found := compute_paired_p(entry.values, other.values):
            marked[row, column] = replace(entry, comparison=Comparison(*found))
    return marked


def find_baseline(recipe: Recipe, rows: Sequence[Labels], row: Labels) -> Labels:
    """Return the row of FedAvg with the same other labels, or else the first row."""
    for n, axis in enumerate(recipe.rows):
        if BASELINE in recipe.axes[axis]:
            return (*row[:n], BASELINE, *row[n + 1 :])
    return rows[0]


def describe_baseline(recipe: Recipe, rows: Sequence[Labels]) -> str:
    """Return the name of the baseline."""
    named = any(BASELINE in recipe.axes[axis] for axis in recipe.rows)
    return BASELINE if named else " / ".join(rows[0])


def _find_in_row(entries: Entries, row: Labels, column: Column) -> Entry | None:
    """Return a row's entry in a column, or the row's only entry."""
    own = [
        entry
        for (labels, other), entry in entries.items()
        if labels == row and other.measure == column.measure
    ]
    return entries.get((row, column)) or (own[0] if len(own) == 1 else None)
