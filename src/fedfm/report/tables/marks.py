"""Mark the best of each column, and significant differences from the baseline."""

from dataclasses import replace

from fedfm.report.tables.statistics import compute_paired_p, rank_values
from fedfm.report.tables.table import Column, Comparison, Entry, Labels, Table

TESTED = "test_accuracy"


def mark_ranks(table: Table) -> Table:
    """Mark the best and the second best of every column."""
    marked = dict(table.entries)
    for column in table.columns:
        places = [place for place in marked if place[1] == column]
        ranks = rank_values([marked[place].mean for place in places], column.measure)
        for place, rank in zip(places, ranks, strict=True):
            marked[place] = replace(marked[place], rank=rank)
    return replace(table, entries=marked)


def mark_comparisons(table: Table) -> Table:
    """Test every row against the baseline."""
    marked = dict(table.entries)
    for (row, column), entry in table.entries.items():
        against = table.find_baseline(row)
        other = _find_in_row(table, against, column)
        if other is None or against == row or column.measure.name != TESTED:
            continue
        if test := compute_paired_p(entry.values, other.values):
            marked[row, column] = replace(entry, comparison=Comparison(*test))
    return replace(table, entries=marked)


def _find_in_row(table: Table, row: Labels, column: Column) -> Entry | None:
    """Return a row's entry in a column, or the row's only entry."""
    of_row = [
        entry
        for (labels, other), entry in table.entries.items()
        if labels == row and other.measure == column.measure
    ]
    return table.entries.get((row, column)) or (of_row[0] if len(of_row) == 1 else None)
