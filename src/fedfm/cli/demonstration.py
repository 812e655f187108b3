"""`fedfm demo`: FedAvg, FedFM and FedFM-Lite on digits that differ between clients."""

from pathlib import Path
from typing import Annotated

import typer

from fedfm.cli.display import numeric_table, print_table
from fedfm.cli.running import run_config
from fedfm.config import Config, load_config
from fedfm.report.comparison import HEADS, Entry, cells, draw

METHODS = {
    "FedAvg": ["method=fedavg"],
    "FedFM": ["method=fedfm", "fedfm.strength=5", "fedfm.start_round=5"],
    "FedFM-Lite": ["method=fedfm-lite", "fedfm-lite.strength=2", "fedfm-lite.start_round=5"],
}
"""Settings of the built-in config `digits`; chosen on validation by recipes/tune_demo.py."""


def demo(
    out: Annotated[Path, typer.Option(help="Where the picture goes.")] = Path("runs/demo.png"),
    seeds: Annotated[int, typer.Option(help="How many seeds.", min=1)] = 3,
) -> None:
    """Compare three methods on scikit-learn's digits; takes about a minute."""
    print("training 10 clients together, three methods, one run per seed ...", flush=True)
    entries = []
    for label, overrides in METHODS.items():
        results = [
            run_config(config(overrides, seed), None, False, f"{label}, seed {seed}")
            for seed in range(seeds)
        ]
        entries.append(Entry(label, results))
    title = "digits, 10 clients with 2 of the 10 classes each, 30 rounds"
    table = numeric_table(title, "method", HEADS)
    for entry in entries:
        table.add_row(entry.label, *cells(entry))
    print_table(table)
    print(f"picture in {draw(entries, title, out)}")


def config(overrides: list[str], seed: int) -> Config:
    """The demo's config for a method and a seed."""
    return load_config("digits", [*overrides, f"seed={seed}"])
