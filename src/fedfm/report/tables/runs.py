"""Find the results of each cell of a recipe: the newest for every seed."""

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from fedfm.core.errors import UserError
from fedfm.grid.identity import digest
from fedfm.grid.recipe import Cell
from fedfm.grid.store import Summary

logger = logging.getLogger(__name__)
Key = frozenset[tuple[str, str]]
"""The labels of a cell."""


def cell_key(labels: Mapping[str, str]) -> Key:
    """Return the key of a cell."""
    return frozenset(labels.items())


def group_by_cell(
    name: str, planned: Iterable[Cell], summaries: Iterable[Summary]
) -> dict[Key, tuple[Summary, ...]]:
    """Return the runs of every cell of recipe `name`, one per seed."""
    found: dict[Key, dict[int, Summary]] = {cell_key(cell.labels): {} for cell in planned}
    known: list[Summary] = []
    strangers: list[Summary] = []
    for each in sorted(summaries, key=lambda each: each.finished):
        (known if cell_key(each.cell) in found else strangers).append(each)
    for each in known:
        found[cell_key(each.cell)][each.seed] = each
    _warn_of_left_out(name, known, strangers)
    return {cell: tuple(run for _, run in sorted(runs.items())) for cell, runs in found.items()}


def has_other_settings(cell: Cell, runs: Iterable[Summary]) -> bool:
    """Return whether a run has another config than the recipe has for its cell."""
    try:
        own = digest(cell.resolved.as_toml())
    except UserError:  # whoever wants to run it is told
        return False
    return any(run.digest != own for run in runs)


def _warn_of_left_out(name: str, known: Iterable[Summary], strangers: Sequence[Summary]) -> None:
    if strangers:
        example = " / ".join(strangers[0].cell.values())
        logger.warning(
            "%s: %d results are left out: the recipe has no such cell as %s",
            name,
            len(strangers),
            example,
        )
    digests = defaultdict(set)
    for each in known:
        digests[each.place].add(each.digest)
    if doubled := sum(len(found) > 1 for found in digests.values()):
        logger.warning(
            "%s: for %d runs there are results of different configs; the newest are used",
            name,
            doubled,
        )
