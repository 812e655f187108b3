"""Results from run folders: what a finished run left behind, as a line for the store."""

import json
import tomllib
from datetime import UTC, datetime
from pathlib import Path

from fedfm.core.checkpoint import Damaged
from fedfm.core.errors import require
from fedfm.grid.store import Summary
from fedfm.run.folder import finished

KEPT = (
    "seed",
    "method",
    "best_round",
    "val_accuracy",
    "test_accuracy",
    "rounds",
    "totals",
    "versions",
    "device",
)
"""What a summary takes from summary.json as it is."""


def summary_of(folder: Path, results: Path | None = None) -> Summary:
    """The result of a finished run, by its files; `results` is the folder of the store."""
    require(finished(folder), f"{folder} holds no finished run; go on with --resume")
    path = folder / "summary.json"
    try:
        found = json.loads(path.read_text())
        when = datetime.fromtimestamp(path.stat().st_mtime, UTC)
        return Summary(
            config=tomllib.loads((folder / "config.toml").read_text()),
            folder=str(folder.relative_to(results) if results else folder),
            measures=_measures(folder),
            finished=when.isoformat(timespec="seconds"),
            **{key: found[key] for key in KEPT},
        )
    except (ValueError, LookupError, TypeError, OSError) as problem:
        raise Damaged(folder, problem) from problem


def _measures(folder: Path) -> dict[str, float]:
    """NMI and silhouette, where they have been measured."""
    path = folder / "features.json"
    found: dict[str, float] = json.loads(path.read_text()) if path.exists() else {}
    return found
