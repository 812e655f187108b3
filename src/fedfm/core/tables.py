"""Tables for services, files and people: nested ones with dotted keys, and rows as CSV."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def flatten_keys(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}} becomes {"a.b": 1}."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        inner = isinstance(value, Mapping)
        found |= flatten_keys(value, f"{prefix}{key}.") if inner else {f"{prefix}{key}": value}
    return found


def to_csv(rows: Sequence[Mapping[str, Any]], names: Iterable[str] = ()) -> str:
    """Rows under all names that any of them has; `names` if there are none."""
    text = io.StringIO()
    names = dict.fromkeys(name for row in rows for name in row) or names
    table = csv.DictWriter(text, [*names], lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    return text.getvalue()
