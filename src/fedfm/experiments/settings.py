"""Settings in files: a part of a config that all cells of a recipe take, as `--with` reads it."""

import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fedfm.core.errors import UserError, require


def settings_in(files: Iterable[Path]) -> list[str]:
    """What TOML files set, as the 'key=value' changes that `--set` takes."""
    return [change for path in files for change in _changes(_read(path))]


def _read(path: Path) -> dict[str, Any]:
    require(path.is_file(), f"--with: there is no file {path}")
    try:
        return tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise UserError(f"--with: {path} is not valid TOML: {problem}") from problem


def _changes(table: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _changes(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}={json.dumps(value)}"
