"""Overrides: keys and values of settings, as people write them."""

import tomllib
from typing import Any

from fedfm.config.renamed import RENAMED, note_new_name, use_new_names
from fedfm.config.schema import Config
from fedfm.config.training import Training
from fedfm.config.validation import field_names
from fedfm.core.errors import require
from fedfm.data.partition import Partition
from fedfm.methods import PIECES


def full_key(key: str) -> str:
    """Return a key with its section: 'rounds' becomes 'training.rounds', 'beta' 'partition.beta'.

    Settings of a method need no section either: 'fedfm.strength' is 'method.fedfm.strength'.
    """
    first, *rest = key.split(".")
    if first in RENAMED:
        note_new_name(f"[{first}]", f"[{RENAMED[first]}]")
        return ".".join([RENAMED[first], *rest])
    if first in PIECES:
        return f"method.{key}"
    if "." not in key and key not in Config.model_fields:
        for section, kind in (("training", Training), ("partition", Partition)):
            if key in field_names(kind):
                return f"{section}.{key}"
    return key


def use_method_table(table: dict[str, Any], settings: Any = None) -> dict[str, Any]:
    """Return a config with its method as a table of pieces; 'fedfm' becomes {'fedfm': {}}.

    Pieces given by name take their settings from `settings`.
    """
    table = use_new_names(table)
    method, settings = table.get("method"), settings if isinstance(settings, dict) else {}
    if isinstance(method, str):
        method = [method]
    if isinstance(method, dict):
        for name, options in method.items():
            require(
                isinstance(options, dict),
                f"[method] has no key '{name}': write method = \"fedavg\", or [method.fedavg] with "
                "its settings",
            )
    if isinstance(method, list):
        twice = [str(name) for name in method if method.count(name) > 1]
        require(not twice, f"method names {', '.join(dict.fromkeys(twice))} twice")
        return table | {"method": {str(name): settings.get(name, {}) for name in method}}
    return table


def override(text: str) -> tuple[list[str], Any]:
    """Return the full key, in parts, and the value that 'key=value' sets."""
    key, equals, value = text.partition("=")
    require(bool(equals), f"an override is key=value, not '{text}'")
    return full_key(key.strip()).split("."), plain_value(value.strip())


def plain_value(text: str) -> Any:
    """Return a value as TOML would read it; a text that is not TOML stays a text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def set_value(table: dict[str, Any], path: list[str], value: Any) -> dict[str, Any]:
    """Return the table with another value at a key."""
    key, *rest = path
    if not rest:
        return table | {key: value}
    inner = table.get(key, {})
    require(isinstance(inner, dict), f"'{key}' is a value, not a section")
    return table | {key: set_value(inner, rest, value)}
