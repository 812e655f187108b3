"""`fedfm demo`: FedAvg, FedFM and FedFM-Lite on digits that differ between clients."""

from pathlib import Path
from typing import Annotated

import typer

from fedfm.cli.run import run_configs
from fedfm.config import Config, load_config
from fedfm.report.comparison import HEADS, Entry, cells, draw
from fedfm.report.html import write_report
from fedfm.run.console import numeric_table, print_table

METHODS = {
    "FedAvg": ["method=fedavg"],
    "FedFM": ["method=fedfm", "fedfm.strength=5", "fedfm.start_round=5"],
    "FedFM-Lite": ["method=fedfm-lite", "fedfm-lite.strength=2", "fedfm-lite.start_round=5"],
}
"""Settings of the built-in config `digits`; chosen on validation by tools/tune_demo.py."""


def demo(
    out: Annotated[Path, typer.Option(help="Where the runs and the report go.")] = Path(
        "runs/demo"
    ),
    seeds: Annotated[int, typer.Option(help="How many seeds.", min=1)] = 3,
) -> None:
    """Compare three methods on scikit-learn's digits; takes about a minute."""
    print("training 10 clients, three methods, all seeds of a method together ...", flush=True)
    entries = []
    for label, overrides in METHODS.items():
        configs = [config(overrides, seed) for seed in range(seeds)]
        folders = [out / f"{each.composed.name}-{each.seed}" for each in configs]
        entries.append(Entry(label, run_configs(configs, folders, resume=True, title=label)))
    title = "digits, 10 clients with 2 of the 10 classes each, 30 rounds"
    table = numeric_table(title, "method", HEADS)
    for entry in entries:
        table.add_row(entry.label, *cells(entry))
    print_table(table)
    print(f"picture in {draw(entries, title, out / 'demo.png')}")
    print(f"report in {write_report([out], out / 'report.html', title).path}")


def config(overrides: list[str], seed: int) -> Config:
    """The demo's config for a method and a seed."""
    return load_config("digits", [*overrides, f"seed={seed}"])
