"""Build a recipe's table from the results that exist; other cells stay empty."""

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product

from fedfm.core.errors import UserError
from fedfm.grid.identity import digest
from fedfm.grid.recipe import Cell, Recipe, expand_cells
from fedfm.grid.store import Summary
from fedfm.report.tables.statistics import (
    TableMetric,
    compute_paired_p,
    get_table_metric,
    rank_values,
)
from fedfm.report.tables.table import (
    Column,
    Comparison,
    Entries,
    Entry,
    Labels,
    PaperValue,
    Table,
)

logger = logging.getLogger(__name__)
TESTED = "test_accuracy"
"""The measure that rows are tested on against the baseline."""
Key = frozenset[tuple[str, str]]
"""The labels of a cell."""


def build_table(recipe: Recipe, summaries: Iterable[Summary], quick: bool = False) -> Table:
    """Return the table of a recipe, either with reduced runs or with full ones."""
    recipe = recipe.reduced if quick else recipe
    chosen = [each for each in summaries if (each.recipe, each.quick) == (recipe.name, quick)]
    planned, measures = (
        list(expand_cells(recipe)),
        [get_table_metric(name) for name in recipe.measures],
    )
    by_key = _group_by_cell(recipe.name, planned, chosen)
    cells = [(cell, by_key[_make_key(cell.labels)]) for cell in planned]
    rows, places = (_sort_labels(recipe, axes, planned) for axes in (recipe.rows, recipe.columns))
    columns = [Column(place, measure) for place in places for measure in measures]
    entries: Entries = {}
    for (cell, runs), measure in product(cells, measures):
        place = _labels_along(recipe.rows, cell), _labels_along(recipe.columns, cell)
        paper = _find_paper_value(recipe, cell, measure)
        entry = Entry(cell.labels, measure, runs, paper, comparable=not quick)
        entries[place[0], Column(place[1], measure)] = entry
    missing = [cell.labels for cell, runs in cells if not runs]
    altered = [cell.labels for cell, runs in cells if runs and _have_other_settings(cell, runs)]
    table = Table(recipe, quick, rows, columns, entries, missing, altered)
    return _mark_comparisons(_mark_ranks(table))


def _labels_along(axes: Iterable[str], cell: Cell) -> Labels:
    return tuple(cell.labels[axis] for axis in axes)


def _sort_labels(recipe: Recipe, axes: Sequence[str], planned: Iterable[Cell]) -> list[Labels]:
    """Return the label combinations that have cells, in the order of the recipe."""
    order = [list(recipe.axes[axis]) for axis in axes]
    return sorted(
        {_labels_along(axes, cell) for cell in planned},
        key=lambda place: [known.index(label) for known, label in zip(order, place, strict=True)],
    )


def _find_paper_value(recipe: Recipe, cell: Cell, measure: TableMetric) -> PaperValue | None:
    several = [measure.name] if len(recipe.measures) > 1 else []
    labels = [cell.labels[axis] for axis in recipe.axes]
    return PaperValue.read(recipe.values.get(" / ".join([*labels, *several])))


def _make_key(labels: Mapping[str, str]) -> Key:
    return frozenset(labels.items())


def _group_by_cell(
    name: str, planned: Iterable[Cell], summaries: Iterable[Summary]
) -> dict[Key, tuple[Summary, ...]]:
    """Return the newest run of every seed, for every cell of recipe `name`."""
    by_seed: dict[Key, dict[int, Summary]] = {_make_key(cell.labels): {} for cell in planned}
    digests: dict[object, set[str]] = defaultdict(set)
    strangers = []
    for each in sorted(summaries, key=lambda each: each.finished):
        if _make_key(each.cell) in by_seed:
            by_seed[_make_key(each.cell)][each.seed] = each
            digests[each.place].add(each.digest)
        else:
            strangers.append(" / ".join(each.cell.values()))
    if strangers:
        message = "%s: %d results are left out: the recipe has no such cell as %s"
        logger.warning(message, name, len(strangers), strangers[0])
    if doubled := sum(len(several) > 1 for several in digests.values()):
        message = "%s: for %d runs there are results of different configs; the newest are used"
        logger.warning(message, name, doubled)
    return {key: tuple(run for _, run in sorted(runs.items())) for key, runs in by_seed.items()}


def _have_other_settings(cell: Cell, runs: Iterable[Summary]) -> bool:
    """Return whether a run has another config than the recipe has for its cell."""
    try:
        expected = digest(cell.resolved.as_toml())
    except UserError:  # `plan_jobs` reports it
        return False
    return any(run.digest != expected for run in runs)


def _mark_ranks(table: Table) -> Table:
    """Mark the best and the second best of every column."""
    marked = dict(table.entries)
    for column in table.columns:
        places = [place for place in marked if place[1] == column]
        ranks = rank_values([marked[place].mean for place in places], column.measure)
        for place, rank in zip(places, ranks, strict=True):
            marked[place] = replace(marked[place], rank=rank)
    return replace(table, entries=marked)


def _mark_comparisons(table: Table) -> Table:
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
