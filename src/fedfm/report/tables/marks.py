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
        places = [place for place in entries if place[1] == column]
        ranks = rank_values([entries[place].mean for place in places], column.measure)
        for place, rank in zip(places, ranks, strict=True):
            marked[place] = replace(entries[place], rank=rank)
    return marked


def mark_comparisons(entries: Entries, recipe: Recipe, rows: Sequence[Labels]) -> Entries:
    """Test every row against the baseline."""
    marked = dict(entries)
    for (row, column), entry in entries.items():
        against = _find_baseline(recipe, rows, row)
        other = _find_in_row(entries, against, column)
        if other is None or against == row or column.measure.name != TESTED:
            continue
        if test := compute_paired_p(entry.values, other.values):
            marked[row, column] = replace(entry, comparison=Comparison(*test))
    return marked


def _find_baseline(recipe: Recipe, rows: Sequence[Labels], row: Labels) -> Labels:
    """Return the row of FedAvg with the same other labels, or else the first row."""
    for n, axis in enumerate(recipe.rows):
        if BASELINE in recipe.axes[axis]:
            return (*row[:n], BASELINE, *row[n + 1 :])
    return rows[0]


def describe_baseline(recipe: Recipe, rows: Sequence[Labels]) -> str:
    """Return the name of the baseline."""
    baseline = _find_baseline(recipe, rows, rows[0])
    return BASELINE if BASELINE in baseline else " / ".join(baseline)


def _find_in_row(entries: Entries, row: Labels, column: Column) -> Entry | None:
    """Return a row's entry in a column, or the row's only entry."""
    of_row = [
        entry
        for (labels, other), entry in entries.items()
        if labels == row and other.measure == column.measure
    ]
    return entries.get((row, column)) or (of_row[0] if len(of_row) == 1 else None)
