"""Choose the best settings of each method from a recipe of the kind "choice"."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from fedfm.core.checkpoint import write_atomically
from fedfm.grid.recipe import Recipe
from fedfm.report.tables.table import Table

Tried = tuple[dict[str, Any], float | None]
"""A method's settings and what they measured; None: not run."""


class ChosenSettings(NamedTuple):
    """The best settings of a method."""

    method: str
    settings: dict[str, Any]
    value: float
    others: tuple[Tried, ...]

    @property
    def toml(self) -> str:
        """Return the settings, and what else was tried, as `--with` reads them."""
        import tomli_w

        tried = ", ".join(itertools.starmap(_format_tried, self.others))
        chosen = tomli_w.dumps({"method": {self.method: self.settings}})
        return f"# {_format_percent(self.value)}; also tried: {tried}\n{chosen.rstrip()}"

    @property
    def words(self) -> str:
        """Return the choice in a line."""
        return f"{self.method}: {_format_tried(self.settings, self.value)}"


def choose_settings(recipe: Recipe, table: Table) -> Iterator[ChosenSettings]:
    """Yield the best settings of every method that was run.

    The best have the highest mean over the table's columns of the recipe's first measure.
    """
    (axis,) = recipe.rows
    measured: dict[str, list[float | None]] = {}
    for (row, _), entry in table.entries.items():
        measured.setdefault(row[0], []).append(entry.mean)
    tried: dict[str, list[Tried]] = {}
    for label, values in measured.items():
        run = [value for value in values if value is not None]
        mean = sum(run) / len(run) if len(run) == len(values) else None
        for method, settings in recipe.axes[axis][label]["method"].items():
            tried.setdefault(method, []).append((settings, mean))
    for method, settings_tried in tried.items():
        compared = _drop_shared(settings_tried)
        complete = [(settings, value) for settings, value in compared if value is not None]
        if complete:
            best, value = max(complete, key=lambda each: each[1])
            others = tuple(each for each in compared if each[0] != best)
            yield ChosenSettings(method, best, value, others)


def _drop_shared(tried: list[Tried]) -> list[Tried]:
    """Drop settings that all rows of a method share, since they were not compared."""
    if len(tried) == 1:
        return tried
    first = tried[0][0]
    shared = {key for key in first if all(each.get(key) == first[key] for each, _ in tried)}
    return [({key: each[key] for key in each if key not in shared}, value) for each, value in tried]


def write_choice(recipe: Recipe, table: Table, results: Path) -> Path | None:
    """Write the choice into the results folder, if there is one."""
    chosen = list(choose_settings(recipe.reduced if table.quick else recipe, table))
    if not chosen:
        return None
    path = results / recipe.name / f"chosen{'-quick' if table.quick else ''}.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    head = f"# Chosen by `fedfm table {recipe.name}`, on {table.columns[0].measure.heading}."
    text = "\n\n".join([head, *(each.toml for each in chosen)]) + "\n"
    write_atomically(path, text.encode())
    return path


def _format_tried(settings: dict[str, Any], value: float | None) -> str:
    changes = ", ".join(f"{key} = {value}" for key, value in settings.items())
    return f"{changes} ({_format_percent(value)})"


def _format_percent(value: float | None) -> str:
    return "not run" if value is None else f"{value:.2f} %"
