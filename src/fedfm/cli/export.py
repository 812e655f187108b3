"""`fedfm export`."""

from pathlib import Path
from typing import Annotated

import typer


def export(
    results: Annotated[Path, typer.Argument(help="Folder of the results.")] = Path("results"),
    out: Annotated[Path, typer.Option("--out", "-o", help="A .csv or .parquet file.")] = Path(
        "runs.csv"
    ),
    rounds: Annotated[
        bool, typer.Option("--rounds", help="Also write all rounds, to a second file next to it.")
    ] = False,
) -> None:
    """Write all results as one table, a row per result, for pandas, polars or a spreadsheet."""
    from fedfm.grid.export import export as write_tables
    from fedfm.grid.store import Store

    for path in write_tables(Store(results), out, rounds=rounds):
        print(f"wrote {path}")
