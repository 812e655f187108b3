"""Sections and executors that had other names before: configs with the old ones are still read."""

import logging
from functools import cache
from typing import Any

logger = logging.getLogger(__name__)

RENAMED = {"protocol": "training"}
"""Sections by the name that they had before."""
RENAMED_EXECUTORS = {"lanes": "threads"}
"""Executors by the name that they had before."""


def use_new_names(table: dict[str, Any], note: bool = True) -> dict[str, Any]:
    """Return a config with today's names of sections and executors; log a note about old ones."""
    renamed = dict(table)
    for old, new in RENAMED.items():
        if old in renamed:
            if note:
                note_new_name(f"[{old}]", f"[{new}]")
            section = renamed.pop(old)
            both = isinstance(section, dict) and isinstance(renamed.get(new, {}), dict)
            renamed[new] = section | renamed.get(new, {}) if both else section
    for old, new in RENAMED_EXECUTORS.items():
        if renamed.get("executor") == old:
            if note:
                note_new_name(f"executor {old}", f"executor {new}")
            renamed["executor"] = new
    return renamed


@cache  # once
def note_new_name(old: str, new: str) -> None:
    """Log a note about an old name."""
    logger.warning("%s is now called %s; the old name is still read", old, new)
