"""Keys and values of settings, as people write them."""

import logging
import tomllib
from functools import cache
from typing import Any

from fedfm.config.schema import Config
from fedfm.config.training import Training
from fedfm.config.validation import field_names
from fedfm.core.errors import require
from fedfm.data.partition import Partition
from fedfm.methods import PIECES

logger = logging.getLogger(__name__)

RENAMED = {"training": "training"}
"""Sections by the name that they had before."""


def use_new_names(table: dict[str, Any], note: bool = True) -> dict[str, Any]:
    """Return a config with its sections under today's names; log a note about old ones."""
    renamed = dict(table)
    for old, new in RENAMED.items():
        if old in renamed:
            if note:
                _note(old, new)
            section = renamed.pop(old)
            both = isinstance(section, dict) and isinstance(renamed.get(new, {}), dict)
            renamed[new] = section | renamed.get(new, {}) if both else section
    return renamed


@cache  # once
def _note(old: str, new: str) -> None:
    logger.warning("[%s] is now called [%s]; the old name is still read", old, new)


def full_key(key: str) -> str:
    """'rounds' means training.rounds, 'beta' partition.beta, 'fedfm.strength' method.fedfm...."""
    first, *rest = key.split(".")
    if first in RENAMED:
        _note(first, RENAMED[first])
        return ".".join([RENAMED[first], *rest])
    if first in PIECES:
        return f"method.{key}"
    if "." not in key and key not in Config.model_fields:
        for section, kind in (("training", Training), ("partition", Partition)):
            if key in field_names(kind):
                return f"{section}.{key}"
    return key


def normalised(table: dict[str, Any], settings: Any = None) -> dict[str, Any]:
    """Methods as a table: 'fedfm' and ['fedprox', 'fedfm'] mean pieces with these settings."""
    table = use_new_names(table)
    method, settings = table.get("method"), settings if isinstance(settings, dict) else {}
    if isinstance(method, str):
        method = [method]
    if isinstance(method, dict):
        for name, own in method.items():
            said = f"[method] has no key '{name}': write method = \"fedavg\", or [method.fedavg]"
            require(isinstance(own, dict), f"{said} with its settings")
    if isinstance(method, list):
        twice = [str(name) for name in method if method.count(name) > 1]
        require(not twice, f"method names {', '.join(dict.fromkeys(twice))} twice")
        return table | {"method": {str(name): settings.get(name, {}) for name in method}}
    return table


def override(text: str) -> tuple[list[str], Any]:
    """The full key, in parts, and the value that 'key=value' sets."""
    key, equals, value = text.partition("=")
    require(bool(equals), f"--set takes key=value, not '{text}'")
    return full_key(key.strip()).split("."), plain_value(value.strip())


def plain_value(text: str) -> Any:
    """A value as TOML would read it; what is no TOML is a text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def merged(table: dict[str, Any], path: list[str], value: Any) -> dict[str, Any]:
    """The table with another value at a key."""
    key, *rest = path
    if not rest:
        return table | {key: value}
    inner = table.get(key, {})
    require(isinstance(inner, dict), f"--set: '{key}' is a value, not a section")
    return table | {key: merged(inner, rest, value)}
