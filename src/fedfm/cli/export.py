"""`fedfm export`."""

from pathlib import Path
from typing import Annotated

import typer

from fedfm.grid.store import Store


def export(
    results: Annotated[Path, typer.Argument(help="The folder of the results.")] = Path("results"),
    out: Annotated[Path, typer.Option("--out", "-o", help="A .csv or .parquet file.")] = Path(
        "runs.csv"
    ),
    rounds: Annotated[
        bool, typer.Option("--rounds", help="Also all rounds, in a file beside it.")
    ] = False,
) -> None:
    """Write all results as a flat table, a row per result, for pandas, polars or a spreadsheet."""
    from fedfm.grid.export import export as write

    for path in write(Store(results), out, rounds=rounds):
        print(f"written: {path}")
