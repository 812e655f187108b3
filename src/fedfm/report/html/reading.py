"""What a report knows of a run, from its folder or from its line among the results."""

import json
import tomllib
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache, cached_property
from math import inf, isfinite
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfm.config import parse
from fedfm.core.errors import UserError
from fedfm.grid.identity import digest, identity
from fedfm.grid.rounds import read_rounds
from fedfm.grid.store import Store, Summary
from fedfm.run.records import best_so_far

Floats = NDArray[np.float64]
MEMBERS, DEPLOYED = "members.json", " (deployed)"
"""What the folder of a federation of real machines has, and how its method is called."""
OWN_DATA = "clients' own data"
TOTALS = ("floats_up", "floats_down", "bytes_up", "bytes_down", "handshakes", "seconds")


@dataclass(frozen=True)
class FoundRun:
    """A finished run, as its folder or its line among the results tells it."""

    folder: Path
    config: dict[str, Any]
    method: str
    seed: int
    best_round: int
    test_accuracy: float
    rounds: int
    totals: dict[str, float]
    finished: str
    """When, in UTC, to the minute."""
    versions: dict[str, str]
    accuracy: Floats = field(default_factory=lambda: np.empty(0))
    """Test accuracy after every round; empty if only the line among the results is there."""
    reached: Floats = field(default_factory=lambda: np.empty(0))
    """That of the best round so far; where the last one counts, the same."""
    sent: Floats = field(default_factory=lambda: np.empty(0))
    """Bytes sent until then, up and down."""
    client_accuracies: tuple[float, ...] = ()
    own_data: bool = False
    """Whether real clients brought theirs: what the config names was not trained on."""
    machine: dict[str, Any] = field(default_factory=dict)
    profile: dict[str, float] = field(default_factory=dict)

    @cached_property
    def identity(self) -> tuple[str, int]:
        """What tells it from other runs: what was run, under which name, and the seed."""
        return digest(identifying(self.config) | {"name": self.method}), self.seed

    @property
    def setting(self) -> dict[str, Any]:
        """The config, with what the clients really had."""
        theirs = {"data": {"name": OWN_DATA}, "partition": {"kind": "as they are"}}
        return self.config | (theirs if self.own_data else {})


def identifying(config: dict[str, Any]) -> dict[str, Any]:
    """What a config runs: not how, and not the first weights, which belong to the seed.

    Keys that it lacks since an older version wrote it have their defaults.
    """
    seedless = {key: value for key, value in config.items() if key != "seed"}
    return _resolved(json.dumps(seedless, default=str))


@cache  # seeds share it
def _resolved(text: str) -> dict[str, Any]:
    config: dict[str, Any] = json.loads(text)
    code = config.get("code", {})  # as it was then
    with suppress(UserError):
        config = parse(config).as_toml() | {"code": code}
    model = {key: value for key, value in config.get("model", {}).items() if key != "digest"}
    return identity(config) | {"model": model}


def read_run(folder: Path) -> FoundRun:
    """A finished run from its folder."""
    summary = json.loads((folder / "summary.json").read_text())
    config = _config(tomllib.loads((folder / "config.toml").read_text()))
    rounds = read_rounds(folder)
    if len(rounds) != summary["rounds"]:
        raise UserError(f"{len(rounds)} of {summary['rounds']} rounds are there")
    written = datetime.fromtimestamp((folder / "summary.json").stat().st_mtime, UTC)
    return FoundRun(
        folder=folder,
        config=config,
        method=str(summary["method"]) + (DEPLOYED if (folder / MEMBERS).exists() else ""),
        seed=int(summary["seed"]),
        best_round=int(summary["best_round"]),
        test_accuracy=_finite(summary["test_accuracy"]),
        rounds=len(rounds),
        totals={name: _finite(summary["totals"][name]) for name in TOTALS},
        finished=f"{written:%Y-%m-%d %H:%M}",
        versions=_texts(summary.get("versions", {})),
        accuracy=np.array([_finite(line["test_accuracy"]) for line in rounds]),
        reached=np.array(_reached(rounds, _finite(summary["test_accuracy"]))),
        sent=np.cumsum([float(line["bytes_up"] + line["bytes_down"]) for line in rounds]),
        client_accuracies=tuple(map(_finite, summary.get("client_accuracies") or ())),
        own_data=bool(_optional(folder / MEMBERS).get("own_data")),
        machine=_texts(_optional(folder / "machine.json")),
        profile=_seconds(_optional(folder / "profile.json")),
    )


def _reached(rounds: list[dict[str, Any]], counts: float) -> list[float]:
    """Test accuracy of the best round so far, if that is how the one that counts was chosen."""
    chosen = best_so_far((r["val_accuracy"], r["test_accuracy"]) for r in rounds)
    return chosen if chosen[-1] == counts else [r["test_accuracy"] for r in rounds]


def _config(table: dict[str, Any]) -> dict[str, Any]:
    for section in ("data", "model", "method", "partition", "training"):
        if not isinstance(table.get(section, {}), dict):
            raise UserError(f"[{section}] of the config is no table")
    return table


def _finite(value: Any) -> float:
    number = float(value)
    if not isfinite(number):
        raise UserError(f"{value} where a number should be")
    return number


def _texts(table: dict[str, Any]) -> dict[str, str]:
    return {str(key): str(value) for key, value in table.items()}


def _optional(path: Path) -> dict[str, Any]:
    """A file that a run may lack; one that cannot be read is as good as none."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _seconds(profile: dict[str, Any]) -> dict[str, float]:
    numbers = {name: s for name, s in profile.items() if isinstance(s, int | float)}
    return {name: s for name, s in numbers.items() if 0 <= s < inf}


def from_line(store: Store, line: Summary) -> FoundRun:
    """A run from its line among the results: it has no curve."""
    return FoundRun(
        folder=store.folder / line.folder,
        config=_config(line.config),
        method=str(line.method),
        seed=int(line.seed),
        best_round=int(line.best_round),
        test_accuracy=_finite(line.test_accuracy),
        rounds=int(line.rounds),
        totals={name: _finite(line.totals[name]) for name in TOTALS},
        finished=line.finished[:16].replace("T", " "),
        versions=_texts(line.versions),
        machine={"device": line.device},
    )
