"""Made-up results for tests of tables, exports and curves."""

import json
from pathlib import Path
from typing import Any

from fedfm.config import parse
from fedfm.grid.store import Store, Summary

CONFIG = parse({"method": "fedavg"}).as_toml()


def result(cell: dict[str, str], seed: int, accuracy: float, **changes) -> Summary:
    """A result of the recipe "sample"; `accuracy` in percent."""
    label = "-".join(cell.values())
    given: dict[str, Any] = {
        "config": CONFIG,
        "seed": seed,
        "method": "fedavg",
        "best_round": 3,
        "val_accuracy": 0.5,
        "test_accuracy": accuracy / 100,
        "rounds": 4,
        "totals": {"floats_up": 1_000_000, "floats_down": 2_000_000, "seconds": 1.5},
        "folder": f"runs/{label}-{seed}",
        "recipe": "sample",
        "cell": cell,
        "finished": "2026-01-01T00:00:00",
    }
    return Summary(**(given | changes))


def results(accuracies: dict[str, list[float]], axis: str = "method") -> list[Summary]:
    """A result for each label and seed, from 0 on."""
    return [
        result({axis: label}, seed, value)
        for label, values in accuracies.items()
        for seed, value in enumerate(values)
    ]


def write_rounds(store: Store, rounds: int = 4) -> None:
    """Run folders for all results of a store, with accuracies that rise to the result's."""
    for summary in store.summaries():
        folder = store.folder / summary.folder
        folder.mkdir(parents=True, exist_ok=True)
        lines = [record(n, summary.test_accuracy * n / rounds) for n in range(1, rounds + 1)]
        (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def record(number: int, accuracy: float) -> dict[str, float]:
    """A line of rounds.jsonl."""
    return {
        "round": number,
        "val_accuracy": accuracy,
        "test_accuracy": accuracy,
        "train_loss": 1 / number,
        "seconds": 0.1,
        "floats_up": 1000,
        "floats_down": 2000,
        "bytes_up": 4000,
        "bytes_down": 8000,
        "handshakes": 1,
        "failed": 0,
    }


def store_of(folder: Path, summaries: list[Summary]) -> Store:
    """A folder of results with the rounds of every run."""
    store = Store(folder)
    store.append(summaries)
    write_rounds(store)
    return store
