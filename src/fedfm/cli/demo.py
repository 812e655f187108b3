"""`fedfm demo`."""

from pathlib import Path
from typing import Annotated

import typer

from fedfm.cli.run import run_and_show

METHODS = {
    "FedAvg": ["method=fedavg"],
    "FedFM": ["method=fedfm", "fedfm.strength=5", "fedfm.start_round=5"],
    "FedFM-Lite": ["method=fedfm-lite", "fedfm-lite.strength=2", "fedfm-lite.start_round=5"],
}
"""Changes to the built-in config `digits`; tools/tune_demo.py chose them on validation data."""


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the runs and the report.")] = Path(
        "runs/demo"
    ),
    seeds: Annotated[int, typer.Option(help="Number of seeds.", min=1)] = 3,
) -> None:
    """Compare FedAvg, FedFM and FedFM-Lite on scikit-learn's digits, in about a minute."""
    from fedfm.config import load_config
    from fedfm.report.demo import HEADS, MethodRuns, draw_comparison, format_cells
    from fedfm.report.html import write_report
    from fedfm.run.console import numeric_table, print_table

    print("training 10 clients with each of three methods ...", flush=True)
    entries = []
    for label, changes in METHODS.items():
        configs = [load_config("digits", [*changes, f"seed={seed}"]) for seed in range(seeds)]
        folders = [out / f"{config.composed.name}-{config.seed}" for config in configs]
        entries.append(MethodRuns(label, run_and_show(configs, folders, resume=True, title=label)))
    title = "digits, 10 clients with 2 of the 10 classes each, 30 rounds"
    table = numeric_table(title, "method", HEADS)
    for entry in entries:
        table.add_row(entry.label, *format_cells(entry))
    print_table(table)
    print(f"picture in {draw_comparison(entries, title, out / 'demo.png')}")
    print(f"report in {write_report([out], out / 'report.html', title).path}")
