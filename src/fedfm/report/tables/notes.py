"""What stands below a table, as plain sentences: what its marks mean, and what is missing."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from fedfm.report.tables.statistics import FEWEST_PAIRS
from fedfm.report.tables.table import SIGNIFICANT, Labels, Table

REDUCED = (
    "REDUCED (--quick): small runs on other data, which show that the recipe works. These numbers "
    "are no results and cannot be compared with the paper's."
)


def notes(table: Table, marks: bool = True) -> list[str]:
    """All notes of a table; `marks`: whether the best values are marked in it."""
    return [
        *([REDUCED] if table.quick else []),
        _reading(table, marks),
        *_comparisons(table),
        *_missing(table),
        *_unmeasured(table),
        *_altered(table),
    ]


def _reading(table: Table, marks: bool) -> str:
    entries = table.entries.values()
    said = f"Mean ± sample deviation over {table.seeds} seeds, (n=…) where there are fewer"
    if any(entry.paper for entry in entries):
        difference = "" if table.quick else ", and in brackets our difference from that"
        said += f"; below them the paper's{difference}"
    if marks and any(entry.rank for entry in entries):
        said += "; the best of ours in a column is bold, the second underlined"
    return said + "."


def _comparisons(table: Table) -> Iterator[str]:
    pairs = sorted({e.comparison.pairs for e in table.entries.values() if e.comparison})
    if not pairs:
        return
    few = "; three seeds are few, so take it as a hint" if pairs[0] == FEWEST_PAIRS else ""
    yield (
        f"* differs from {table.baseline}, p < {SIGNIFICANT}: two-sided paired t-test of the test "
        f"accuracies with the same seeds, n = {' or '.join(map(str, pairs))}, not corrected for "
        f"the number of comparisons{few}."
    )


def _missing(table: Table) -> Iterator[str]:
    if table.missing:
        cells = len({tuple(entry.labels.items()) for entry in table.entries.values()})
        yield f"Not run: {len(table.missing)} of {cells} cells: {by_row(table, table.missing)}."


def _unmeasured(table: Table) -> Iterator[str]:
    for measure in dict.fromkeys(column.measure for column in table.columns):
        lacking = [
            entry.labels
            for entry in table.entries.values()
            if entry.measure == measure and entry.runs and len(entry.values) < len(entry.runs)
        ]
        if lacking:
            yield f"Run, but without {measure.heading} for some seeds: {by_row(table, lacking)}."


def _altered(table: Table) -> Iterator[str]:
    if table.altered:
        yield f"Run with other settings than the recipe's: {by_row(table, table.altered)}."


def by_row(table: Table, cells: Sequence[Mapping[str, str]]) -> str:
    """Cells in few words: the columns of every row, or "all"."""
    wanted = defaultdict(list)
    for labels in cells:
        row, place = (
            tuple(labels[axis] for axis in axes) for axes in (table.row_axes, table.column_axes)
        )
        wanted[row].append(" / ".join(place))
    return "; ".join(" / ".join(row) + _columns(table, row, wanted[row]) for row in wanted)


def _columns(table: Table, row: Labels, places: Sequence[str]) -> str:
    if not table.column_axes:
        return ""
    possible = {column.labels for other, column in table.entries if other == row}
    return " (all)" if len(places) == len(possible) > 1 else f" ({', '.join(places)})"
