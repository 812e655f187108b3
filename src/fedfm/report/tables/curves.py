"""The picture of a recipe's table: for recipes that the paper shows as curves."""

from pathlib import Path

from fedfm.grid.rounds import Rounds, rounds_of
from fedfm.report.parameter import Values, over_parameter
from fedfm.report.tables.table import Table
from fedfm.report.traffic import against_traffic

SEPARATOR = " / "


def draw(table: Table, results: Path, path: Path) -> Path:
    """Draw a table with columns over them, and one without against what its runs have sent.

    `results` is the folder of the results, in which the runs' folders are.
    """
    if not table.column_axes:
        return against_traffic(runs_by_cell(table, results), _title(table), path)
    axis, heading = SEPARATOR.join(table.column_axes), table.columns[0].measure.heading
    return over_parameter(values_by_row(table), axis, _title(table), path, heading)


def values_by_row(table: Table) -> Values:
    """The first measure of every row that was run: by column, a value for each seed."""
    measure = table.columns[0].measure
    found = {
        SEPARATOR.join(row): {
            SEPARATOR.join(column.labels): list(entry.values.values())
            for column, entry in zip(table.columns, entries, strict=True)
            if entry and entry.values and column.measure == measure
        }
        for row, entries in table.lines
    }
    return {row: values for row, values in found.items() if values}


def runs_by_cell(table: Table, results: Path) -> dict[str, list[Rounds]]:
    """The rounds of the runs behind every cell, by its labels."""
    entries = table.entries.values()
    runs = {run.place: run for entry in entries for run in entry.runs}
    rounds = {run.place: found for run, found in rounds_of(results, runs.values())}
    cells = {SEPARATOR.join(entry.labels.values()): entry.runs for entry in entries}
    found = {
        label: [rounds[run.place] for run in runs if run.place in rounds]
        for label, runs in cells.items()
    }
    return {label: runs for label, runs in found.items() if runs}


def _title(table: Table) -> str:
    """The headline, in which a line does not break between "Fig." and its number."""
    return table.headline.replace(table.paper, table.paper.replace(" ", "\u00a0"))
