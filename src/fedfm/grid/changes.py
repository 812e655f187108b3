"""Changes of the cells of a recipe: what --set and --with say."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from fedfm.config import override, use_method_table
from fedfm.core.errors import require
from fedfm.data import SOURCES

Settings = dict[str, Any]
"""A nested table of a config, whole or in part."""


class Change(NamedTuple):
    """A change of a setting by the user, in all cells or in some."""

    path: list[str]
    settings: Settings
    label: str = ""
    """Only in cells with this label."""
    source: str = ""
    """Only in cells whose data have this name in the recipe."""

    def is_about(self, labels: Mapping[str, str], source: str, fixed: bool) -> bool:
        """Return whether a cell takes the change; one that fixes its method only by its label."""
        if self.path[0] == "method" and fixed and not self.label:
            return False
        return self.label in ("", *labels.values()) and self.source in ("", source)


def parse_change(text: str) -> Change:
    """Read 'key=value', 'only.LABEL.key=value', or 'data.SOURCE.key=value'."""
    label, source = "", ""
    if text.startswith("only."):
        _, label, text = text.split(".", 2)
    path, value = override(text)
    require(path != ["seed"], "seeds are chosen with --seeds, not with --set seed")
    if path[0] == "data" and len(path) > 2 and path[1] in SOURCES:
        source = path.pop(1)
    for part in reversed(path):
        value = {part: value}
    return Change(path, value, label, source)


def apply_change(config: Settings, path: list[str], change: Settings) -> Settings:
    """Return a config after a user's change; settings of absent methods are ignored."""
    if path == ["method"]:
        return config | use_method_table(change)
    if path[0] == "method" and path[1] not in config.get("method", {}):
        return config
    return merge_settings(config, change)


def merge_settings(table: Settings, changes: Settings) -> Settings:
    """Return a nested table with changes; keys that they do not mention stay."""
    both = dict(table)
    for key, value in changes.items():
        old = both.get(key)
        nested = isinstance(old, dict) and isinstance(value, dict)
        both[key] = merge_settings(old, value) if nested and isinstance(old, dict) else value
    return both
