"""Which results fill the cells of a recipe: of each cell and seed the newest."""

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


def key(labels: Mapping[str, str]) -> Key:
    """What a cell's runs are found by."""
    return frozenset(labels.items())


def runs_by_cell(
    name: str, planned: Iterable[Cell], summaries: Iterable[Summary]
) -> dict[Key, tuple[Summary, ...]]:
    """The runs of all cells of the recipe `name`, one per seed; `summaries` are that recipe's."""
    found: dict[Key, dict[int, Summary]] = {key(cell.labels): {} for cell in planned}
    known: list[Summary] = []
    strangers: list[Summary] = []
    for each in sorted(summaries, key=lambda each: each.finished):
        (known if key(each.cell) in found else strangers).append(each)
    for each in known:
        found[key(each.cell)][each.seed] = each
    _say_what_is_left_out(name, known, strangers)
    return {cell: tuple(run for _, run in sorted(runs.items())) for cell, runs in found.items()}


def has_other_settings(cell: Cell, runs: Iterable[Summary]) -> bool:
    """Whether some runs are of another config than the recipe has for their cell."""
    try:
        own = digest(cell.resolved.as_toml())
    except UserError:  # whoever wants to run it is told
        return False
    return any(run.digest != own for run in runs)


def _say_what_is_left_out(
    name: str, known: Iterable[Summary], strangers: Sequence[Summary]
) -> None:
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
