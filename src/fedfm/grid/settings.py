"""Settings in files: a part of a config that all cells of a recipe take, as `--with` reads it."""

import json
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fedfm.core.errors import UserError, require
from fedfm.core.tables import flatten_keys


def settings_in(files: Iterable[Path]) -> list[str]:
    """What TOML files set, as the 'key=value' changes that `--set` takes."""
    tables = (flatten_keys(_read(path)) for path in files)
    return [f"{key}={json.dumps(value)}" for each in tables for key, value in each.items()]


def _read(path: Path) -> dict[str, Any]:
    require(path.is_file(), f"--with: there is no file {path}")
    try:
        return tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise UserError(f"--with: {path} is not valid TOML: {problem}") from problem
