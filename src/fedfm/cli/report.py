"""`fedfm report`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from fedfm.core.errors import require


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUNS...", help="Run folders, folders of them, result folders."),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The HTML file.")] = Path("report.html"),
    title: Annotated[str | None, typer.Option(help="The page's title.")] = None,
) -> None:
    """Write one HTML file about runs; it needs no network, and nothing but itself."""
    from fedfm.report.html import write_report

    require(not out.is_dir(), f"{out} is a folder; name a file with --out")
    written = write_report(runs, out, title)
    for each in written.left_out:
        print(f"left out: {each.what}: {each.why}", file=sys.stderr)
    print(f"{written.runs} {'run' if written.runs == 1 else 'runs'}; report in {written.path}")
