"""A recipe's table, built from the results that are there; what is not there stays empty."""

from collections.abc import Iterable, Mapping, Sequence

from fedfm.core.errors import unknown
from fedfm.grid.recipe import Cell, Recipe, cells
from fedfm.grid.store import Summary
from fedfm.report.tables.formats import FORMATS, render
from fedfm.report.tables.marks import baseline_name, compared, ranked
from fedfm.report.tables.runs import has_other_settings, key, runs_by_cell
from fedfm.report.tables.statistics import Measure, measure_named
from fedfm.report.tables.table import Column, Entry, Labels, Paper, Table

__all__ = ["FORMATS", "Table", "build", "render", "trace"]


def build(recipe: Recipe, summaries: Iterable[Summary], quick: bool = False) -> Table:
    """The table of a recipe, with the reduced runs or with the full ones, never both."""
    recipe = recipe.reduced if quick else recipe
    own = [each for each in summaries if (each.recipe, each.quick) == (recipe.name, quick)]
    planned, measures = list(cells(recipe)), [measure_named(name) for name in recipe.measures]
    runs = runs_by_cell(recipe.name, planned, own)
    rows, places = (_in_order(recipe, axes, planned) for axes in (recipe.rows, recipe.columns))
    columns = [Column(place, measure) for place in places for measure in measures]
    entries = {
        (_along(recipe.rows, cell), Column(_along(recipe.columns, cell), measure)): Entry(
            cell.labels,
            measure,
            runs[key(cell.labels)],
            _paper(recipe, cell, measure),
            comparable=not quick,
        )
        for cell in planned
        for measure in measures
    }
    return Table(
        recipe=recipe.name,
        title=recipe.title,
        paper=recipe.paper,
        about=recipe.about,
        quick=quick,
        seeds=recipe.seeds,
        row_axes=tuple(recipe.rows),
        column_axes=tuple(recipe.columns),
        rows=rows,
        columns=columns,
        entries=compared(ranked(entries, columns), recipe, rows),
        baseline=baseline_name(recipe, rows),
        missing=[cell.labels for cell in planned if not runs[key(cell.labels)]],
        altered=[c.labels for c in planned if has_other_settings(c, runs[key(c.labels)])],
    )


def trace(table: Table, labels: Mapping[str, str]) -> list[Summary]:
    """The runs behind the cells with these labels, which may be those of some axes only."""
    known = {
        axis: {entry.labels[axis] for entry in table.entries.values()}
        for axis in (*table.row_axes, *table.column_axes)
    }
    for axis, label in labels.items():
        if axis not in known:
            raise unknown("axis", axis, known)
        if label not in known[axis]:
            raise unknown(axis, label, known[axis])
    behind = (
        run
        for entry in table.entries.values()
        if labels.items() <= entry.labels.items()
        for run in entry.runs
    )
    return list({run.place: run for run in behind}.values())


def _along(axes: Iterable[str], cell: Cell) -> Labels:
    return tuple(cell.labels[axis] for axis in axes)


def _in_order(recipe: Recipe, axes: Sequence[str], planned: Iterable[Cell]) -> list[Labels]:
    """The combinations along some axes that have cells, in the order of the recipe's labels."""
    order = [list(recipe.axes[axis]) for axis in axes]
    return sorted(
        {_along(axes, cell) for cell in planned},
        key=lambda place: [known.index(label) for known, label in zip(order, place, strict=True)],
    )


def _paper(recipe: Recipe, cell: Cell, measure: Measure) -> Paper | None:
    several = [measure.name] if len(recipe.measures) > 1 else []
    labels = [cell.labels[axis] for axis in recipe.axes]
    return Paper.read(recipe.values.get(" / ".join([*labels, *several])))
