"""`fedfm verify`."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import fedfm.paper.theory.checks as analysis
from fedfm.cli.options import Format
from fedfm.core.errors import require
from fedfm.methods import PIECES, piece_class
from fedfm.verify import suite
from fedfm.verify.report import Report


def verify(
    methods: Annotated[
        list[str] | None, typer.Argument(help=f"Some of {', '.join(PIECES)}; all by default.")
    ] = None,
    theory: Annotated[
        bool, typer.Option("--theory", help="Check the convergence analysis instead.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="The folder for the picture of --theory.")
    ] = None,
    format: Format = "text",
) -> None:
    """Check that the methods are what they say, and that the checks notice planted mistakes.

    Exit code 1 if a check fails or a planted mistake survives; takes about a minute.
    """
    torch.set_num_threads(1)  # networks this small are not worth a second thread
    require(theory or out is None, "--out goes with --theory")
    require(not (theory and methods), "--theory takes no methods")
    conclude(analysis.report(out) if theory else verified(methods), format)


def verified(methods: list[str] | None) -> Report:
    """The suite's report on some methods."""
    names = list(dict.fromkeys(methods or PIECES))
    for name in names:
        piece_class(name)
    with show_progress(len(names) + len(suite.mistakes_in(names))) as step:
        return suite.verify_all(names, step)


def conclude(report: Report | analysis.TheoryReport, format: Format) -> None:
    """Print a report and leave with its verdict."""
    if format == "json":
        print(json.dumps(report.as_dict()))
    else:
        Console().print(report)
    raise typer.Exit(0 if report.passed else 1)


@contextmanager
def show_progress(steps: int) -> Iterator[Callable[[str], None]]:
    """A bar on a terminal; elsewhere nothing."""
    if not sys.stderr.isatty():
        yield lambda what: None
        return
    with Progress(
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
        console=Console(stderr=True),
        transient=True,
    ) as bar:
        task = bar.add_task("", total=steps, completed=-1)
        yield lambda what: bar.update(task, advance=1, description=what)
