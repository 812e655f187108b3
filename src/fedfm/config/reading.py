"""Configs: a TOML file or a built-in name, plus overrides."""

import json
import tomllib
from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fedfm.config.keys import merged, normalised, override
from fedfm.config.mistakes import first_mistake
from fedfm.config.schema import Config
from fedfm.core.errors import UserError, require, unknown


def builtin_names() -> list[str]:
    """The configs that ship with the package."""
    folder = resources.files("fedfm.config") / "builtin"
    return sorted(
        Path(entry.name).stem for entry in folder.iterdir() if entry.name.endswith(".toml")
    )


def load_config(source: str, overrides: Iterable[str] = ()) -> Config:
    """The config of a TOML file or of a built-in name, after 'key=value' overrides.

    A method that an override chooses keeps the settings it has by then.
    """
    table = normalised(_read(source))
    chosen = _pieces(table) or [*Config.model_fields["method"].default]
    for path, value in map(override, overrides):
        table = normalised(merged(table, path, value), table.get("method"))
        if path == ["method"]:
            chosen = _pieces(table)
    _check_chosen(table, chosen)
    return parse(table)


def _pieces(table: dict[str, Any]) -> list[str]:
    method = table.get("method")
    return [*method] if isinstance(method, dict) else []


def _check_chosen(table: dict[str, Any], chosen: list[str]) -> None:
    """Refuse settings of a method that is not run: they would add it to the others."""
    for name in _pieces(table):
        both = json.dumps([*chosen, name])
        require(
            name in chosen,
            f"settings of '{name}', but the method is {' + '.join(chosen)}: choose it as well, "
            f"with --set method={name}, or with --set 'method={both}' for both",
        )


def parse(table: dict[str, Any]) -> Config:
    """A config from nested plain values; says what is wrong with them in a line or two."""
    try:
        return Config.model_validate(normalised(table))
    except ValidationError as problem:
        raise UserError(first_mistake(problem)) from problem


def _read(source: str) -> dict[str, Any]:
    path = Path(source)
    if path.suffix != ".toml" and not path.is_file():
        if source not in builtin_names():
            raise unknown("config", source, builtin_names())
        return tomllib.loads(
            (resources.files("fedfm.config") / "builtin" / f"{source}.toml").read_text()
        )
    require(path.is_file(), f"there is no config file {source}")
    try:
        return tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise UserError(f"{source} is not valid TOML: {problem}") from problem
