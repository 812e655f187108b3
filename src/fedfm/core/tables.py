"""Nested tables with dotted keys, and rows as CSV."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def flatten_keys(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Turn {"a": {"b": 1}} into {"a.b": 1}."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        inner = isinstance(value, Mapping)
        flat |= flatten_keys(value, f"{prefix}{key}.") if inner else {f"{prefix}{key}": value}
    return flat


def to_csv(rows: Sequence[Mapping[str, Any]], names: Iterable[str] = ()) -> str:
    """Return rows as CSV under the names of all rows, or under `names` if there are no rows."""
    text = io.StringIO()
    names = dict.fromkeys(name for row in rows for name in row) or names
    table = csv.DictWriter(text, [*names], lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    return text.getvalue()
