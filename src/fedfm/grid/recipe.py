"""Recipes: a table or figure of the paper as a grid of configs, with the paper's numbers.

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

from fedfm.config import Config, normalised, override, parse
from fedfm.core.errors import UserError, require, unknown

Settings = dict[str, Any]
"""A nested table of a config, whole or in part."""
Output = Literal["table", "curve", "features", "clients", "partitions", "choice"]
"""What people look at: numbers, lines along the columns' axis, feature spaces, who holds what; or
which settings of methods did best, and so are chosen."""


@dataclass(frozen=True)
class Recipe:
    """A grid of experiments, and how it is laid out as a table."""

    name: str
    title: str
    axes: dict[str, dict[str, Settings]]
    """What each label of each axis changes."""
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    paper: str = ""
    """Where the paper has it."""
    about: str = ""
    base: Settings = field(default_factory=dict)
    measures: tuple[str, ...] = ("test_accuracy",)
    values: dict[str, Any] = field(default_factory=dict)
    """The paper's numbers by labels, "A / B" in the axes' order, with the measure if several."""
    skipped: tuple[dict[str, Any], ...] = ()
    """Combinations without a cell: a label, or a list of them, for some axes."""
    quick: Settings = field(default_factory=dict)
    output: Output = "table"
    seeds: int = 3

    def __post_init__(self) -> None:
        """Refuse a layout that does not fit the axes."""
        laid_out = sorted((*self.rows, *self.columns))
        require(
            laid_out == sorted(self.axes),
            f"recipe {self.name}: rows and columns are {laid_out}, the axes {sorted(self.axes)}",
        )
        if self.output not in get_args(Output):
            raise unknown(f"output in recipe {self.name}:", self.output, get_args(Output))

    @property
    def reduced(self) -> "Recipe":
        """The recipe of the reduced runs, which the paper has no numbers for."""
        changes, picked = self.quick.get("axes", {}), self.quick.get("labels", {})
        axes = {}
        for axis, labels in self.axes.items():
            known = merged(labels, changes.get(axis, {}))
            axes[axis] = {label: known[label] for label in picked.get(axis, labels)}
        skipped = (*self.skipped, *self.quick.get("skipped", ()))
        base = merged(self.base, self.quick.get("base", {}))
        return replace(self, base=base, axes=axes, skipped=skipped, values={}, quick={})

    def skips(self, labels: Mapping[str, str]) -> bool:
        """Whether there is no cell with these labels."""
        return any(
            all(labels[axis] in _listed(given) for axis, given in each.items())
            for each in self.skipped
        )


@dataclass(frozen=True)
class Cell:
    """An experiment of a recipe, to be run with several seeds."""

    labels: dict[str, str]
    config: Settings

    @property
    def title(self) -> str:
        """The labels in a line."""
        return " / ".join(self.labels.values())

    @property
    def resolved(self) -> Config:
        """The config, checked; a `UserError` says what is wrong with it."""
        return parse(self.config)


def cells(recipe: Recipe, quick: bool = False, overrides: Iterable[str] = ()) -> Iterator[Cell]:
    """The experiments of a recipe, after 'key=value' changes to all of them."""
    recipe = recipe.reduced if quick else recipe
    changes = [_change(text) for text in overrides]
    if recipe.output == "choice":  # between settings of methods, so nobody else sets them
        changes = [(path, change) for path, change in changes if path[0] != "method"]
    for combination in product(*recipe.axes.values()):
        labels = dict(zip(recipe.axes, combination, strict=True))
        if recipe.skips(labels):
            continue
        config = normalised(recipe.base)
        for axis, label in labels.items():
            config = merged(config, normalised(recipe.axes[axis][label]))
        for path, change in changes:
            config = _changed(config, path, change)
        yield Cell(labels, _without_idle_piece(config))


def merged(table: Settings, changes: Settings) -> Settings:
    """A nested table with changes; what they do not mention stays."""
    both = dict(table)
    for key, value in changes.items():
        old = both.get(key)
        nested = isinstance(old, dict) and isinstance(value, dict)
        both[key] = merged(old, value) if nested and isinstance(old, dict) else value
    return both


def parse_recipe(name: str, text: str, axes: Settings, quick: Settings) -> Recipe:
    """Return the recipe in a TOML text; `axes` and `quick` are what recipes share."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        raise UserError(f"recipe {name} is not valid TOML: {problem}") from problem
    known = [each.name for each in fields(Recipe)]
    for key in table:
        if key not in known:
            raise unknown(f"key in recipe {name}:", key, known)
    for key in ("title", "axes", "rows", "columns"):
        require(key in table, f"recipe {name} needs the key '{key}'")
    table["axes"] = {a: _labels(a, found, axes) for a, found in table["axes"].items()}
    table["quick"] = merged(quick, table.get("quick", {}))
    for key in ("rows", "columns", "measures", "skipped"):
        if key in table:
            table[key] = tuple(table[key])
    recipe = Recipe(name, **table)
    _check_skipped(recipe)
    if recipe.output == "choice":
        _check_choice(recipe)
    return recipe


def _check_skipped(recipe: Recipe) -> None:
    """Refuse labels that no cell has."""
    for each in recipe.skipped:
        for axis, labels in each.items():
            if axis not in recipe.axes:
                raise unknown(f"axis in [[skipped]] of recipe {recipe.name}:", axis, recipe.axes)
            for label in _listed(labels):
                if label not in recipe.axes[axis]:
                    said = f"{axis} in [[skipped]] of recipe {recipe.name}:"
                    raise unknown(said, label, recipe.axes[axis])


def _check_choice(recipe: Recipe) -> None:
    """Refuse to choose what is not kept: chosen.toml has the settings of methods."""
    for axis in recipe.rows:
        for label, own in recipe.axes[axis].items():
            more = sorted(own.keys() - {"method"})
            said = f"recipe {recipe.name}: '{label}' sets {', '.join(more)}"
            require(not more, f"{said}, but a choice is between settings of methods only")


def _labels(axis: str, found: Any, shared: Settings) -> dict[str, Settings]:
    """What an axis says, or what the labels in its list stand for in all recipes."""
    if isinstance(found, dict):
        return found
    known: dict[str, Settings] = shared.get(axis, {})
    for label in found:
        if label not in known:
            raise unknown(f"label of the axis '{axis}':", label, known)
    return {label: known[label] for label in found}


def _listed(given: Any) -> list[str]:
    return given if isinstance(given, list) else [given]


def _change(text: str) -> tuple[list[str], Settings]:
    path, change = override(text)
    require(path != ["seed"], "seeds are chosen with --seeds, not with --set seed")
    for part in reversed(path):
        change = {part: change}
    return path, change


def _changed(config: Settings, path: list[str], change: Settings) -> Settings:
    """A config after a user's change; a method's settings are not about other methods."""
    if path == ["method"]:
        return config | normalised(change)
    if path[0] == "method" and path[1] not in config.get("method", {}):
        return config
    return merged(config, change)


def _without_idle_piece(config: Settings) -> Settings:
    """FedAvg with another piece on top is that piece: the same experiment has one config."""
    method = config.get("method", {})
    if len(method) < 2 or "fedavg" not in method:
        return config
    return config | {"method": {name: own for name, own in method.items() if name != "fedavg"}}
