"""`fedfm report`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from fedfm.core.errors import plural, require


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUNS...", help="Folders of runs, folders that hold runs, or result folders."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The HTML file.")] = Path("report.html"),
    title: Annotated[str | None, typer.Option(help="Title of the page.")] = None,
) -> None:
    """Write a report about runs: one HTML file that works without a network."""
    from fedfm.report.html import write_report

    require(not out.is_dir(), f"{out} is a folder; name a file with --out")
    written = write_report(runs, out, title)
    for omitted in written.left_out:
        print(f"left out: {omitted.what}: {omitted.why}", file=sys.stderr)
    print(f"{plural(written.runs, 'run')}; report in {written.path}")
