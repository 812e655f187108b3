"""Nested tables with dotted keys, for services, files and people."""

from collections.abc import Mapping
from typing import Any


def dotted(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}} becomes {"a.b": 1}."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        inner = isinstance(value, Mapping)
        found |= dotted(value, f"{prefix}{key}.") if inner else {f"{prefix}{key}": value}
    return found
