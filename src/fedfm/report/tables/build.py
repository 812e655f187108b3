"""Build a recipe's table from the results that exist; other cells stay empty."""

from collections.abc import Iterable, Mapping, Sequence

from fedfm.core.errors import unknown
from fedfm.grid.recipe import Cell, Recipe, expand_cells
from fedfm.grid.store import Summary
from fedfm.report.tables.marks import describe_baseline, mark_comparisons, mark_ranks
from fedfm.report.tables.runs import cell_key, group_by_cell, has_other_settings
from fedfm.report.tables.statistics import Measure, get_measure
from fedfm.report.tables.table import Column, Entry, Labels, PaperValue, Table


def build_table(recipe: Recipe, summaries: Iterable[Summary], quick: bool = False) -> Table:
    """Return the table of a recipe, either with reduced runs or with full ones."""
    recipe = recipe.reduced if quick else recipe
    own = [each for each in summaries if (each.recipe, each.quick) == (recipe.name, quick)]
    planned, measures = list(expand_cells(recipe)), [get_measure(name) for name in recipe.measures]
    runs = group_by_cell(recipe.name, planned, own)
    rows, places = (_sort_labels(recipe, axes, planned) for axes in (recipe.rows, recipe.columns))
    columns = [Column(place, measure) for place in places for measure in measures]
    entries = {
        (
            _labels_along(recipe.rows, cell),
            Column(_labels_along(recipe.columns, cell), measure),
        ): Entry(
            cell.labels,
            measure,
            runs[cell_key(cell.labels)],
            _find_paper_value(recipe, cell, measure),
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
        entries=mark_comparisons(mark_ranks(entries, columns), recipe, rows),
        baseline=describe_baseline(recipe, rows),
        missing=[cell.labels for cell in planned if not runs[cell_key(cell.labels)]],
        altered=[c.labels for c in planned if has_other_settings(c, runs[cell_key(c.labels)])],
    )


def trace_runs(table: Table, labels: Mapping[str, str]) -> list[Summary]:
    """Return the runs behind the cells with these labels, along all or some axes."""
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


def _labels_along(axes: Iterable[str], cell: Cell) -> Labels:
    return tuple(cell.labels[axis] for axis in axes)


def _sort_labels(recipe: Recipe, axes: Sequence[str], planned: Iterable[Cell]) -> list[Labels]:
    """Return the label combinations that have cells, in the order of the recipe."""
    order = [list(recipe.axes[axis]) for axis in axes]
    return sorted(
        {_labels_along(axes, cell) for cell in planned},
        key=lambda place: [known.index(label) for known, label in zip(order, place, strict=True)],
    )


def _find_paper_value(recipe: Recipe, cell: Cell, measure: Measure) -> PaperValue | None:
    several = [measure.name] if len(recipe.measures) > 1 else []
    labels = [cell.labels[axis] for axis in recipe.axes]
    return PaperValue.read(recipe.values.get(" / ".join([*labels, *several])))
