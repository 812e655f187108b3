"""A report over 500 runs of 100 rounds: seconds and memory of the whole command."""

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import tomli_w

from fedfm.config import load_config

METHODS = ("fedavg", "fedprox", "scaffold", "fednova", "moon", "fedproto", "fedfm", "fedfm-lite")
BETAS = (0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0, 7.0, 10.0, 100.0)
SEEDS = 5
ROUNDS = 100
RUNS = 500
LIMITS = {"seconds": 5.0, "MB": 500.0}


def write_run(
    folder: Path, method: str = "fedfm", seed: int = 0, rounds: int = 8, **partition: Any
) -> Path:
    """A run folder with invented numbers, whose config is one that could be run."""
    chosen = [f"{key}={value}" for key, value in {"kind": "niid3", **partition}.items()]
    changes = [f"method={method}", f"seed={seed}", f"rounds={rounds}"]
    config = load_config("digits", [*changes, *(f"partition.{change}" for change in chosen)])
    lines = _rounds(np.random.default_rng([seed, *method.encode()]), rounds)
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(tomli_w.dumps(config.as_toml()))
    (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "machine.json").write_text(
        json.dumps({"executor": "stacked", "why": "", "device": "cpu", "name": "invented"})
    )
    (folder / "summary.json").write_text(json.dumps(_summary(config.composed.name, seed, lines)))
    return folder


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


def write_runs(folder: Path) -> None:
    """So many runs: methods by partitions by seeds."""
    grid = ((m, b, s) for b in BETAS for m in METHODS for s in range(SEEDS))
    for number, (method, beta, seed) in zip(range(RUNS), grid, strict=False):
        write_run(folder / f"{number:03}", method, seed, ROUNDS, kind="niid1", beta=beta)


def main() -> None:
    """Measure it in a process of its own, the start of Python and its imports included."""
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_runs(folder / "runs")
        command = "import sys; from fedfm.cli import main; sys.exit(main())"
        arguments = ["report", str(folder / "runs"), "--out", str(folder / "report.html")]
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", command, *arguments], check=True, env=os.environ)
        seconds = time.perf_counter() - start
        size = (folder / "report.html").stat().st_size / 1e6
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    memory, processor = used.ru_maxrss * 1024 / 1e6, used.ru_utime + used.ru_stime
    print(f"{RUNS} runs of {ROUNDS} rounds: {size:.1f} MB, {processor:.1f} s of a processor's time")
    for name, found in {"seconds": seconds, "MB": memory}.items():
        print(f"{found:8.1f} {name} (wanted: below {LIMITS[name]:g})")


if __name__ == "__main__":
    main()
