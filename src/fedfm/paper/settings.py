"""The settings that belong to a folder of results: its data, and what was chosen on validation."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedfm.core.tables import flatten_keys
from fedfm.paper.claims import L2

CHOICES = ("tune", "tune-l2")
"""The recipes that choose settings of methods, in the order of the plan."""


def list_settings_files(results: Path, quick: bool = False) -> list[Path]:
    """Return the files that a folder has: data.toml, and the choices."""
    chosen = f"chosen{'-quick' if quick else ''}.toml"
    files = [results / "data.toml", *(results / recipe / chosen for recipe in CHOICES)]
    return [path for path in files if path.is_file()]


def read_choice(results: Path) -> dict[str, Mapping[str, Any]]:
    """Return the settings that were chosen, by method; those of L2 guiding under `L2`."""
    choice: dict[str, Mapping[str, Any]] = {}
    for path in list_settings_files(results):
        table = tomllib.loads(path.read_text())
        choice |= table.get("method", {})
        for label, settings in table.get("only", {}).items():
            if "(L2" in label:
                choice[L2] = settings["method"]["fedfm"]
    return choice


def read_data_settings(results: Path) -> dict[str, Any]:
    """Return what data.toml sets, with dotted keys."""
    path = results / "data.toml"
    return flatten_keys(tomllib.loads(path.read_text())) if path.is_file() else {}
