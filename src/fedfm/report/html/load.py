"""Load a run for the report, from its folder or from its line in results.jsonl."""

import json
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from math import inf, isfinite
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfm.config import parse
from fedfm.core.errors import UserError
from fedfm.grid.identity import digest, extract_identity
from fedfm.grid.store import Summary, read_rounds, read_summary
from fedfm.run.records import best_so_far

Floats = NDArray[np.float64]
MEMBERS, DEPLOYED = "members.json", " (deployed)"
"""A file that only the folder of a deployment has, and the suffix of its method's label."""
OWN_DATA = "clients' own data"
TOTALS = ("floats_up", "floats_down", "bytes_up", "bytes_down", "handshakes", "seconds")


@dataclass(frozen=True)
class LoadedRun(Summary):
    """A finished run, checked for the page; `folder` is a whole path, `finished` to the minute."""

    accuracy: Floats = field(default_factory=lambda: np.empty(0))
    """Test accuracy after every round; empty if only the line among the results is there."""
    best_so_far: Floats = field(default_factory=lambda: np.empty(0))
    """That of the best round so far, or of the same round if the last one counts."""
    sent: Floats = field(default_factory=lambda: np.empty(0))
    """Bytes sent until then, up and down."""
    client_accuracies: tuple[float, ...] = ()
    """Of each client on its own samples, those of `split`."""
    client_names: tuple[str, ...] = ()
    """The names of these clients, where the data name them."""
    split: str = "validation"
    curves: dict[str, Floats] = field(default_factory=dict)
    """Further metrics on the test samples after every round; NaN: no value."""
    by_class: dict[str, Floats] = field(default_factory=dict)
    """Metrics of the reported model by class [C], or as a matrix [C, C]; NaN: no value."""
    own_data: bool = False
    """Whether real clients brought their own data, so that the config's was not used."""
    cells: dict[str, dict[str, str]] = field(default_factory=dict)
    """By recipe, the labels of the cell that the run fills."""
    machine: dict[str, Any] = field(default_factory=dict)
    profile: dict[str, float] = field(default_factory=dict)

    @cached_property
    def identity(self) -> tuple[str, int]:
        """Return what identifies it: the digest of config and method, and the seed."""
        return digest(identify(self.config) | {"name": self.method}), self.seed

    @property
    def setting(self) -> dict[str, Any]:
        """Return the config, with the data that the clients really had."""
        theirs = {"data": {"name": OWN_DATA}, "partition": {"kind": "as they are"}}
        return self.config | (theirs if self.own_data else {})


def identify(config: dict[str, Any]) -> dict[str, Any]:
    """Return what a config computes, without seed, initial weights and machine settings.

    Keys that an older version did not write have their defaults.
    """
    seedless = {key: value for key, value in config.items() if key != "seed"}
    return _resolve(json.dumps(seedless, default=str))


@cache  # seeds share it
def _resolve(text: str) -> dict[str, Any]:
    config: dict[str, Any] = json.loads(text)
    code = config.get("code", {})  # as it was then
    with suppress(UserError):
        config = parse(config).as_toml() | {"code": code}
    model = {key: value for key, value in config.get("model", {}).items() if key != "digest"}
    return extract_identity(config) | {"model": model}


def load_run(folder: Path) -> LoadedRun:
    """Load a finished run from its folder."""
    summary = read_summary(folder)
    rounds = read_rounds(folder)
    if len(rounds) != summary.rounds:
        raise UserError(f"{len(rounds)} of {summary.rounds} rounds are there")
    run = load_summary(folder, summary)
    more = _read_optional(folder / "summary.json")
    return replace(
        run,
        method=run.method + (DEPLOYED if (folder / MEMBERS).exists() else ""),
        accuracy=np.array([_to_finite(line["test_accuracy"]) for line in rounds]),
        best_so_far=np.array(_track_best(rounds, run.test_accuracy)),
        sent=np.cumsum([float(line["bytes_up"] + line["bytes_down"]) for line in rounds]),
        **_read_clients(more, _read_optional(folder / "data.json").get("clients")),
        curves=_read_curves(rounds),
        by_class=_read_by_class(more),
        own_data=bool(_read_optional(folder / MEMBERS).get("own_data")),
        machine=_to_texts(_read_optional(folder / "machine.json")),
        profile=_clean_profile(_read_optional(folder / "profile.json")),
    )


def _read_clients(summary: dict[str, Any], names: Any) -> dict[str, Any]:
    """Read each client's accuracy: on its test samples, or else on its validation samples."""
    results = summary.get("clients", {})
    values = results.get("values", {}).get("accuracy") or summary.get("client_accuracies") or ()
    known = tuple(_to_finite(value) for value in values if value is not None)
    fitting = isinstance(names, list) and len(names) == len(known)
    return {
        "client_accuracies": known,
        "client_names": tuple(map(str, names)) if fitting else (),
        "split": str(results.get("split", "validation")),
    }


def _read_curves(rounds: list[dict[str, Any]]) -> dict[str, Floats]:
    """Read the metrics that every round has."""
    tables = [line.get("metrics", {}).get("test", {}) for line in rounds]
    names = [name for name in tables[0] if all(name in table for table in tables)]
    return {name: np.array([table[name] for table in tables], float) for name in names}


def _read_by_class(summary: dict[str, Any]) -> dict[str, Floats]:
    values = summary.get("metrics", {}).get("test", {})
    return {
        name: np.array(value, float) for name, value in values.items() if isinstance(value, list)
    }


def _track_best(rounds: list[dict[str, Any]], counts: float) -> list[float]:
    """Return the accuracy of the best round so far, if the reported round was chosen so."""
    chosen = best_so_far((r["val_accuracy"], r["test_accuracy"]) for r in rounds)
    return chosen if chosen[-1] == counts else [r["test_accuracy"] for r in rounds]


def _check_config(table: dict[str, Any]) -> dict[str, Any]:
    for section in ("data", "model", "method", "partition", "training"):
        if not isinstance(table.get(section, {}), dict):
            raise UserError(f"[{section}] of the config is no table")
    return table


def _to_finite(value: Any) -> float:
    number = float(value)
    if not isfinite(number):
        raise UserError(f"{value} where a number should be")
    return number


def _to_texts(table: dict[str, Any]) -> dict[str, str]:
    return {str(key): str(value) for key, value in table.items()}


def _read_optional(path: Path) -> dict[str, Any]:
    """Read a file that a run may lack; return nothing if it cannot be read."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _clean_profile(profile: dict[str, Any]) -> dict[str, float]:
    numbers = {name: s for name, s in profile.items() if isinstance(s, int | float)}
    return {name: s for name, s in numbers.items() if 0 <= s < inf}


def load_summary(folder: Path, summary: Summary) -> LoadedRun:
    """Load a run from its line in results.jsonl; it has no curve."""
    checked = {
        "folder": str(folder),
        "config": _check_config(summary.config),
        "method": str(summary.method),
        "test_accuracy": _to_finite(summary.test_accuracy),
        "totals": {name: _to_finite(summary.totals[name]) for name in TOTALS},
        "finished": summary.finished[:16].replace("T", " "),
        "versions": _to_texts(summary.versions),
        "machine": {"device": summary.device},
    }
    counts = {name: int(getattr(summary, name)) for name in ("seed", "best_round", "rounds")}
    return LoadedRun(**vars(summary) | checked | counts)
