"""The rounds of finished runs, as their folders record them."""

import json
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fedfm.grid.store import Summary

logger = logging.getLogger(__name__)
Rounds = list[dict[str, Any]]
"""A run: the fields of `fedfm.run.records.RoundRecord` for each round."""


def read_rounds(folder: Path) -> Rounds:
    """The rounds of a run; a line that a crash cut off is not one."""
    lines = (folder / "rounds.jsonl").read_text().splitlines()
    try:
        found: Rounds = json.loads(f"[{','.join(lines)}]")
    except ValueError:
        found = json.loads(f"[{','.join(lines[:-1])}]")
    return found


def rounds_of(folder: Path, summaries: Iterable[Summary]) -> list[tuple[Summary, Rounds]]:
    """The runs of the results in `folder` with their rounds; says how many cannot be read."""
    found, lost = [], []
    for summary in summaries:
        try:
            found.append((summary, read_rounds(folder / summary.folder)))
        except (OSError, ValueError):
            lost.append(summary.folder)
    if lost:
        logger.warning(
            "%d runs are left out, since their rounds cannot be read, e.g. %s in %s",
            len(lost),
            lost[0],
            folder,
        )
    return found
