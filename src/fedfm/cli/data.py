"""`fedfm data`."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from fedfm.cli.options import Format


def data(
    dir: Annotated[Path | None, typer.Option(help="Folder of the downloaded files.")] = None,
    format: Format = "text",
) -> None:
    """List the data sets, and which of their files are missing on this machine."""
    from rich.console import Console
    from rich.table import Table

    from fedfm.data import SOURCES
    from fedfm.data.source import data_folder

    rows: list[dict[str, Any]] = []
    for name, source in SOURCES.items():
        missing = [file.name for file in source.missing(data_folder(dir))]
        files = {"present": not missing, "folder": str(data_folder(dir) / name), "missing": missing}
        rows.append({"name": name, "description": source.description, **files})
    if format == "json":
        print(json.dumps(rows))
        return
    table = Table("data", "what it is", "on this machine")
    for row in rows:
        here = "yes" if row["present"] else f"no: needs {', '.join(row['missing'])}"
        table.add_row(row["name"], row["description"], here)
    Console().print(table)
    print(f"files are kept in {data_folder(dir)} (change it with --dir or FEDFM_DATA)")
