"""Run folders with invented numbers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from fedfm.config import Config, load_config


def write_run(
    folder: Path, method: str = "fedfm", seed: int = 0, rounds: int = 8, **partition: Any
) -> Path:
    """A run folder with invented numbers, whose config is one that could be run."""
    chosen = [f"{key}={value}" for key, value in {"kind": "niid3", **partition}.items()]
    changes = [f"method={method}", f"seed={seed}", f"rounds={rounds}"]
    config = load_config("digits", [*changes, *(f"partition.{change}" for change in chosen)])
    write_folder(folder, config)
    return folder


def write_folder(folder: Path, config: Config) -> None:
    """Write the folder of a finished run of that config, with invented numbers."""
    name, seed, rounds = config.composed.name, config.seed, config.training.rounds
    lines = _rounds(np.random.default_rng([seed, *name.encode()]), rounds)
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(tomli_w.dumps(config.as_toml()))
    (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "machine.json").write_text(
        json.dumps({"executor": "stacked", "why": "", "device": "cpu", "name": "invented"})
    )
    (folder / "summary.json").write_text(json.dumps(_summary(name, seed, lines)))


def _rounds(rng: np.random.Generator, rounds: int) -> list[dict[str, float]]:
    climbing = 0.95 - 0.8 * np.exp(-np.arange(rounds) * rng.uniform(0.03, 0.3))
    accuracies = climbing + rng.normal(0, 0.01, rounds)
    sent = {"floats_up": 137_060, "floats_down": 137_060, "bytes_up": 548_240}
    fixed = sent | {"bytes_down": 548_240, "handshakes": 1, "seconds": 0.1, "train_loss": 0.3}
    return [
        {"round": i + 1, "val_accuracy": float(a), "test_accuracy": float(a), **fixed}
        for i, a in enumerate(np.clip(accuracies, 0, 1))
    ]


def _summary(method: str, seed: int, lines: list[dict[str, float]]) -> dict[str, Any]:
    best = max(lines, key=lambda line: line["val_accuracy"])
    totals = ("floats_up", "floats_down", "bytes_up", "bytes_down", "handshakes", "seconds")
    spread = np.linspace(-0.05, 0.05, 10) + best["val_accuracy"]
    return {
        "method": method,
        "seed": seed,
        "best_round": best["round"],
        "val_accuracy": best["val_accuracy"],
        "test_accuracy": best["test_accuracy"],
        "rounds": len(lines),
        "totals": {name: sum(line[name] for line in lines) for name in totals},
        "versions": {"fedfm": "0.1.0", "torch": "2.13.0"},
        "device": "cpu",
        "client_accuracies": np.clip(spread, 0, 1).tolist(),
    }
