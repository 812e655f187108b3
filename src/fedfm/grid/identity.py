"""The identity of a run: what it computes, apart from how and where.

Results are known by a digest of it. The digest must survive new keys and new names, so a key that
the first format did not have counts only where it is not at its default, and sections are hashed
under their first names.
"""

import hashlib
import json
from collections.abc import Collection, Mapping
from functools import cache
from typing import Any

from fedfm.config import parse
from fedfm.config.renamed import RENAMED, use_new_names
from fedfm.core.errors import UserError

MACHINE = (
    "seed",
    "executor",
    "device",
    "precision",
    "threads",
    "client_states",
    "checkpoint_every",
    "deployment",
)
"""Keys of a config that say how to run it, not what it computes; data.dir is another."""

_MATCHING = ("strength", "start_round", "temperature", "guide", "anchors")
FIRST_KEYS: Mapping[str, Collection[str]] = {
    "data": ("name", "path", "size", "label"),
    "model": ("name",),
    "partition": ("kind", "beta", "min_samples", "dominance", "missing"),
    "training": (
        *("clients", "rounds", "participation", "validation", "epochs", "batch_size", "lr"),
        *("momentum", "weight_decay", "keep_last", "evaluate_every"),
    ),
    "privacy": ("clip", "noise", "anchor_clip", "anchor_noise", "delta", "colluders"),
    "method.fedavgm": ("beta",),
    "method.fedprox": ("mu",),
    "method.feddyn": ("alpha",),
    "method.moon": ("mu", "tau"),
    "method.fedproto": ("strength", "start_round", "anchors"),
    "method.fedfm": _MATCHING,
    "method.fedfm-lite": (*_MATCHING, "models_every"),
}
"""The keys of the first format, which are hashed whatever their value. Add none, remove none."""
FIRST_NAMES = {new: old for old, new in RENAMED.items()}


def extract_identity(config: dict[str, Any]) -> dict[str, Any]:
    """Return what a config runs, without the keys of later formats that are at their default."""
    config = use_new_names(config, note=False)
    usual = _default_config(
        tuple(config.get("method", {})), config.get("model", {}).get("name", "")
    )
    kept = {key: value for key, value in config.items() if key not in MACHINE}
    partition = config.get("partition", {})
    if partition.get("kind") in ("natural", "own"):  # known only when the data are read
        kept["training"] = _without(config.get("training", {}), "clients")
        kept["partition"] = _without(partition, "digest") if partition.get("file") else partition
    if config.get("privacy"):  # the smallest number of clients decides the noise
        kept["fewest"] = config.get("deployment", {}).get("minimum")
    return {
        key: _drop_defaults(key, value, usual.get(key, {})) if isinstance(value, dict) else value
        for key, value in kept.items()
        if key in FIRST_KEYS or key == "method" or value != usual.get(key)
    }


def digest(config: dict[str, Any]) -> str:
    """Return a short fingerprint of what a config runs, whatever its seed and the machine."""
    kept = extract_identity(config)
    kept["data"] = {key: value for key, value in kept.get("data", {}).items() if key != "dir"}
    if "model" in kept:  # weights are known by their digest
        kept["model"] = {key: value for key, value in kept["model"].items() if key != "weights"}
    kept = {FIRST_NAMES.get(key, key): value for key, value in kept.items()}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:12]


def _without(table: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in table.items() if key != name}


def _drop_defaults(section: str, table: dict[str, Any], usual: Any) -> dict[str, Any]:
    """Return a section without the keys that came later and are at their default."""
    if section == "method":
        return {
            name: _drop_defaults(f"method.{name}", settings, usual.get(name, {}))
            for name, settings in table.items()
        }
    first = FIRST_KEYS.get(section, ())
    return {
        key: value
        for key, value in table.items()
        if key in first or not isinstance(usual, dict) or value != usual.get(key)
    }


@cache
def _default_config(methods: tuple[str, ...], model: str) -> dict[str, Any]:
    """Return a config with these methods and this model, and all else at its default."""
    try:
        return parse({"method": {name: {} for name in methods}, "model": {"name": model}}).as_toml()
    except UserError:  # an unknown method or model: all of its settings count
        return {k: v for k, v in parse({}).as_toml().items() if k not in ("method", "model")}
