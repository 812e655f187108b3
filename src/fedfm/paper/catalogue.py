"""The recipes of the paper's tables and figures, and files with settings for them."""

import json
import tomllib
from collections.abc import Iterable
from functools import cache
from importlib import resources
from pathlib import Path

from fedfm.core.errors import UserError, require, unknown_name_error
from fedfm.core.tables import flatten_keys
from fedfm.grid.changes import Settings
from fedfm.grid.recipe import Recipe, parse_recipe

FOLDER = Path(str(resources.files("fedfm.paper"))) / "recipes"


def list_recipe_names() -> list[str]:
    """Return the names of the recipes that ship with the package."""
    files = (entry.name for entry in FOLDER.iterdir())
    return sorted(name.removesuffix(".toml") for name in files if name.endswith(".toml"))


def load_recipe(name: str) -> Recipe:
    """Return a recipe that ships with the package, or the one in a TOML file of the user's."""
    path = Path(name)
    if path.suffix == ".toml":
        require(path.is_file(), f"there is no recipe file {name}")
        return _parse(path.stem, path.read_text())
    if name not in list_recipe_names():
        raise unknown_name_error("recipe", name, list_recipe_names())
    return _load_shipped(FOLDER / f"{name}.toml")


@cache
def _load_shipped(path: Path) -> Recipe:
    return _parse(path.stem, path.read_text())


def read_shared(name: str) -> Settings:
    """Return a table that recipes share."""
    return tomllib.loads((FOLDER / "shared" / f"{name}.toml").read_text())


def _parse(name: str, text: str) -> Recipe:
    return parse_recipe(name, text, read_shared("axes"), read_shared("quick"))


def read_settings(files: Iterable[Path]) -> list[str]:
    """Return what TOML files set, as the 'key=value' changes that `--set` takes."""
    tables = (flatten_keys(_read_toml(path)) for path in files)
    return [f"{key}={json.dumps(value)}" for each in tables for key, value in each.items()]


def _read_toml(path: Path) -> Settings:
    require(path.is_file(), f"--with: there is no file {path}")
    try:
        return tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise UserError(f"--with: {path} is not valid TOML: {problem}") from problem
