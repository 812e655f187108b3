"""Recipes: a table or figure as a grid of configs, with the paper's numbers.

A recipe is a TOML file. `base` is the config that all cells share; each axis gives labels their
changes to it; a cell is one label of every axis. An axis that is a list takes its labels from
recipes/shared/axes.toml. `quick` reduces the grid to something for a minute or two: `labels` picks
or replaces an axis's labels, `axes` and `base` change what they mean.
"""

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import product
from typing import Any, Literal, get_args

from fedfm.config import Config, parse, use_method_table
from fedfm.core.errors import UserError, require, unknown_name_error
from fedfm.grid.changes import Settings, apply_change, merge_settings, parse_change
from fedfm.methods import PIECES

Output = Literal["table", "curve", "features", "clients", "partitions", "choice"]
"""What a recipe shows: numbers, curves over the columns' axis, feature spaces, local models of
clients, partitions; or the best settings of each method, which are then chosen."""


@dataclass(frozen=True)
class Recipe:
    """A grid of configs, and its layout as a table."""

    name: str
    title: str
    axes: dict[str, dict[str, Settings]]
    """What each label of each axis changes."""
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    paper: str = ""
    """Where the paper has it."""
    tuned: str = ""
    """The recipe that chooses settings of the labels; cells wait until it has been run."""
    about: str = ""
    base: Settings = field(default_factory=dict)
    measures: tuple[str, ...] = ("test_accuracy",)
    values: dict[str, Any] = field(default_factory=dict)
    """The paper's numbers by labels, "A / B" in the axes' order, with the measure if several."""
    skipped: tuple[dict[str, Any], ...] = ()
    """Combinations without a cell: a label, or a list of them, for some axes."""
    fixed: tuple[str, ...] = ()
    """Cells with a label that begins so set their method themselves: no change reaches it."""
    beyond: dict[str, dict[str, Settings]] = field(default_factory=dict)
    """Of a choice: further labels, each for a choice at that end of its method's range."""
    chosen_for: str = ""
    """Of a choice: the only label whose cells take what is chosen; by default all cells do."""
    quick: Settings = field(default_factory=dict)
    output: Output = "table"
    seeds: int = 3
    cells: tuple["Cell", ...] = ()
    """The cells themselves, instead of one for every combination of labels."""

    def __post_init__(self) -> None:
        """Refuse a layout that does not fit the axes."""
        laid_out = sorted((*self.rows, *self.columns))
        require(
            laid_out == sorted(self.axes),
            f"recipe {self.name}: rows and columns are {laid_out}, the axes {sorted(self.axes)}",
        )
        if self.output not in get_args(Output):
            raise unknown_name_error(
                f"output in recipe {self.name}:", self.output, get_args(Output)
            )

    @property
    def reduced(self) -> "Recipe":
        """Return the recipe of the reduced runs, for which the paper has no numbers."""
        changes, picked = self.quick.get("axes", {}), self.quick.get("labels", {})
        axes = {}
        for axis, labels in self.axes.items():
            known = merge_settings(labels, changes.get(axis, {}))
            axes[axis] = {label: known[label] for label in picked.get(axis, labels)}
        skipped = (*self.skipped, *self.quick.get("skipped", ()))
        base = merge_settings(self.base, self.quick.get("base", {}))
        return replace(self, base=base, axes=axes, skipped=skipped, values={}, quick={})

    def extended(self, axis: str, labels: Iterable[str]) -> "Recipe":
        """Return the recipe with some of the labels of `beyond`."""
        added = {label: self.beyond[axis][label] for label in labels}
        return replace(self, axes=self.axes | {axis: self.axes[axis] | added})

    def fixes(self, labels: Mapping[str, str]) -> bool:
        """Return whether the cell with these labels sets its method itself."""
        fixed = any(label.startswith(self.fixed) for label in labels.values())
        return fixed or self.output == "choice"

    def skips(self, labels: Mapping[str, str]) -> bool:
        """Return whether there is no cell with these labels."""
        return any(
            all(labels[axis] in _as_list(given) for axis, given in each.items())
            for each in self.skipped
        )


@dataclass(frozen=True)
class Cell:
    """One config of a recipe, to be run with several seeds."""

    labels: dict[str, str]
    config: Settings

    @property
    def title(self) -> str:
        """Return the labels in a line."""
        return " / ".join(self.labels.values())

    @property
    def resolved(self) -> Config:
        """Return the checked config; raise `UserError` if it is wrong."""
        return parse(self.config)


def expand_cells(
    recipe: Recipe, quick: bool = False, overrides: Iterable[str] = ()
) -> Iterator[Cell]:
    """Yield the cells of a recipe, after 'key=value' changes to all of them."""
    if recipe.cells:
        yield from recipe.cells
        return
    recipe = recipe.reduced if quick else recipe
    changes = [parse_change(text) for text in overrides]
    for combination in product(*recipe.axes.values()):
        labels = dict(zip(recipe.axes, combination, strict=True))
        if recipe.skips(labels):
            continue
        config = use_method_table(recipe.base)
        for axis, label in labels.items():
            config = merge_settings(config, use_method_table(recipe.axes[axis][label]))
        source = config.get("data", {}).get("name", "")
        for change in changes:
            if change.is_about(labels, source, recipe.fixes(labels)):
                config = apply_change(config, change.path, change.settings)
        yield Cell(labels, _drop_idle_pieces(config))


def parse_recipe(name: str, text: str, axes: Settings, quick: Settings) -> Recipe:
    """Return the recipe in a TOML text; `axes` and `quick` are what recipes share."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        raise UserError(f"recipe {name} is not valid TOML: {problem}") from problem
    known = [each.name for each in fields(Recipe) if each.name != "cells"]
    for key in table:
        if key not in known:
            raise unknown_name_error(f"key in recipe {name}:", key, known)
    for key in ("title", "axes", "rows", "columns"):
        require(key in table, f"recipe {name} needs the key '{key}'")
    table["axes"] = {a: _resolve_labels(a, labels, axes) for a, labels in table["axes"].items()}
    table["quick"] = merge_settings(quick, table.get("quick", {}))
    for key in ("rows", "columns", "measures", "skipped", "fixed"):
        if key in table:
            table[key] = tuple(table[key])
    recipe = Recipe(name, **table)
    _check_skipped(recipe)
    if recipe.output == "choice":
        _check_choice(recipe)
    return recipe


def _check_skipped(recipe: Recipe) -> None:
    """Refuse labels that no axis has."""
    for each in recipe.skipped:
        for axis, labels in each.items():
            if axis not in recipe.axes:
                raise unknown_name_error(
                    f"axis in [[skipped]] of recipe {recipe.name}:", axis, recipe.axes
                )
            for label in _as_list(labels):
                if label not in recipe.axes[axis]:
                    what = f"{axis} in [[skipped]] of recipe {recipe.name}:"
                    raise unknown_name_error(what, label, recipe.axes[axis])


def _check_choice(recipe: Recipe) -> None:
    """Refuse rows that set more than methods, since chosen.toml holds only those."""
    for axis in recipe.rows:
        for label, settings in recipe.axes[axis].items():
            more = sorted(settings.keys() - {"method"})
            problem = f"recipe {recipe.name}: '{label}' sets {', '.join(more)}"
            require(not more, f"{problem}, but a choice is between settings of methods only")


def _resolve_labels(axis: str, labels: Any, shared: Settings) -> dict[str, Settings]:
    """Return the labels of an axis; a list names labels that all recipes share."""
    if isinstance(labels, dict):
        return labels
    known: dict[str, Settings] = shared.get(axis, {})
    for label in labels:
        if label not in known:
            raise unknown_name_error(f"label of the axis '{axis}':", label, known)
    return {label: known[label] for label in labels}


def _as_list(given: Any) -> list[str]:
    return given if isinstance(given, list) else [given]


def _drop_idle_pieces(config: Settings) -> Settings:
    """Remove pieces that add nothing to others, so that an experiment has one config."""
    method = config.get("method", {})
    needed = {
        name: settings
        for name, settings in method.items()
        if name not in PIECES or not PIECES[name].adds_nothing
    }
    return config | {"method": needed} if needed and needed != method else config
