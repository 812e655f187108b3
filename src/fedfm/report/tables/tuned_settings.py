"""Choose the best settings of each method from a recipe of the kind "choice"."""

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fedfm.core.files import write_atomically
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

    def format_toml(self, label: str = "") -> str:
        """Return the settings, and what else was tried, as `--with` reads them.

        With a label they are for the cells with this label only.
        """
        import tomli_w

        tried = ", ".join(itertools.starmap(_format_tried, self.others))
        settings: dict[str, Any] = {"method": {self.method: self.settings}}
        chosen = tomli_w.dumps({"only": {label: settings}} if label else settings)
        return f"# {_format_percent(self.value)}; also tried: {tried}\n{chosen.rstrip()}"

    @property
    def words(self) -> str:
        """Return the choice in a line."""
        return f"{self.method}: {_format_tried(self.settings, self.value)}"


def choose_settings(recipe: Recipe, table: Table) -> Iterator[ChosenSettings]:
    """Yield the best settings of every method that was run.

    The best have the highest mean over the table's columns of the recipe's first measure.
    """
    for method, compared in find_tried(recipe, table).items():
        complete = [(settings, value) for settings, value in compared if value is not None]
        if complete:
            best, value = max(complete, key=lambda each: each[1])
            others = tuple(each for each in compared if each[0] != best)
            yield ChosenSettings(method, best, value, others)


def find_tried(recipe: Recipe, table: Table) -> dict[str, list[Tried]]:
    """Return by method its settings, as far as they differ, and their means over the columns."""
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
    return {method: _drop_shared(settings) for method, settings in tried.items()}


def find_beyond(recipe: Recipe, table: Table) -> list[str]:
    """Return the labels beyond the range that are needed, since a choice is at its end.

    Nothing is needed while a value of the method has not been run.
    """
    (axis,) = recipe.rows
    choices = {each.method: each for each in choose_settings(recipe, table)}
    return [
        label
        for label, settings in recipe.beyond.get(axis, {}).items()
        for method, values in settings["method"].items()
        if method in choices and _is_at_end(choices[method], values)
    ]


def _is_at_end(choice: ChosenSettings, beyond: Mapping[str, Any]) -> bool:
    """Return whether a choice is the value of its range that is the nearest to one beyond."""
    ((key, best),) = choice.settings.items()
    complete = all(value is not None for _, value in choice.others)
    side = 1 if beyond[key] > best else -1
    nearest = all(side * settings[key] < side * best for settings, _ in choice.others)
    return complete and nearest


def extend_choice(recipe: Recipe, table: Table) -> Recipe:
    """Return a recipe with the values beyond the range that its choice needs."""
    (axis,) = recipe.rows
    return recipe.extended(axis, find_beyond(recipe, table))


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
    text = "\n\n".join([head, *(each.format_toml(recipe.chosen_for) for each in chosen)]) + "\n"
    write_atomically(path, text.encode())
    return path


def _format_tried(settings: dict[str, Any], value: float | None) -> str:
    changes = ", ".join(f"{key} = {value}" for key, value in settings.items())
    return f"{changes} ({_format_percent(value)})"


def _format_percent(value: float | None) -> str:
    return "not run" if value is None else f"{value:.2f} %"
