"""Explain below a table what its marks mean, and list what is missing."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from fedfm.report.tables.statistics import FEWEST_PAIRS
from fedfm.report.tables.table import SIGNIFICANT, Labels, Table

REDUCED = (
    "REDUCED (--quick): small runs on other data, which only show that the recipe works. Do not "
    "compare these numbers with the paper's."
)


def write_notes(table: Table, marks: bool = True) -> list[str]:
    """Return all notes; `marks`: whether the best values are marked."""
    return [
        *([REDUCED] if table.quick else []),
        _explain_cells(table, marks),
        *_explain_stars(table),
        *_list_cells(table),
    ]


def _explain_cells(table: Table, marks: bool) -> str:
    entries = table.entries.values()
    parts = [
        f"Mean ± standard deviation over {table.recipe.seeds} seeds, (n=…) where there are fewer"
    ]
    if any(entry.paper for entry in entries):
        difference = "" if table.quick else ", with our difference from it in brackets"
        parts.append(f"below it the paper's value{difference}")
    if marks and any(entry.rank for entry in entries):
        parts.append("our best value of a column is bold, the second best underlined")
    return "; ".join(parts) + "."


def _explain_stars(table: Table) -> Iterator[str]:
    pairs = sorted({e.comparison.pairs for e in table.entries.values() if e.comparison})
    if not pairs:
        return
    few = "; with three seeds suggestive, not conclusive" if pairs[0] == FEWEST_PAIRS else ""
    yield (
        f"* differs from {table.baseline}, p < {SIGNIFICANT}: two-sided paired t-test of the test "
        f"accuracies with the same seeds, n = {' or '.join(map(str, pairs))}, not corrected for "
        f"the number of comparisons{few}."
    )


def _list_cells(table: Table) -> Iterator[str]:
    """Yield which cells were not run, not measured, or run with other settings."""
    if table.missing:
        cells = len({tuple(entry.labels.items()) for entry in table.entries.values()})
        where = list_by_row(table, table.missing)
        yield f"Not run: {len(table.missing)} of {cells} cells: {where}."
    for measure in dict.fromkeys(column.measure for column in table.columns):
        lacking = [
            entry.labels
            for entry in table.entries.values()
            if entry.measure == measure and entry.runs and len(entry.values) < len(entry.runs)
        ]
        if lacking:
            where = list_by_row(table, lacking)
            yield f"Run, but without {measure.heading} for some seeds: {where}."
    if table.altered:
        yield f"Run with other settings than the recipe's: {list_by_row(table, table.altered)}."


def list_by_row(table: Table, cells: Sequence[Mapping[str, str]]) -> str:
    """List cells by row, with their columns or "all"."""
    wanted = defaultdict(list)
    for labels in cells:
        row = tuple(labels[axis] for axis in table.recipe.rows)
        wanted[row].append(" / ".join(labels[axis] for axis in table.recipe.columns))
    return "; ".join(" / ".join(row) + _list_columns(table, row, wanted[row]) for row in wanted)


def _list_columns(table: Table, row: Labels, places: Sequence[str]) -> str:
    if not table.recipe.columns:
        return ""
    possible = {column.labels for other, column in table.entries if other == row}
    return " (all)" if len(places) == len(possible) > 1 else f" ({', '.join(places)})"
