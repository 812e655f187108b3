"""`fedfm verify`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedfm.cli.options import Format
from fedfm.core.errors import require

if TYPE_CHECKING:
    from fedfm.paper.theory.checks import TheoryReport
    from fedfm.verify.report import Report


def verify(
    methods: Annotated[
        list[str] | None,
        typer.Argument(help="Names of methods (see `fedfm methods`).", show_default="all"),
    ] = None,
    theory: Annotated[
        bool, typer.Option("--theory", help="Check the convergence analysis instead of methods.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Folder for the picture of --theory.")] = None,
    format: Format = "text",
) -> None:
    """Check that methods compute what their papers say, and that the checks catch mistakes.

    Takes one to two minutes. The exit code is 1 if a check fails or a mistake is not caught.
    """
    import torch
    from rich.console import Console

    require(theory or out is None, "--out needs --theory")
    require(not (theory and methods), "--theory takes no methods")
    torch.set_num_threads(1)  # networks this small are not worth a second thread
    report = _check_theory(out) if theory else _verify_methods(methods)
    if format == "json":
        print(json.dumps(report.as_dict()))
    else:
        Console().print(report)
    raise typer.Exit(0 if report.passed else 1)


def _check_theory(out: Path | None) -> TheoryReport:
    from fedfm.paper.theory.checks import check_theory

    return check_theory(out)


def _verify_methods(methods: list[str] | None) -> Report:
    from fedfm.methods import PIECES, piece_class
    from fedfm.verify import suite

    names = list(dict.fromkeys(methods or PIECES))
    for name in names:
        piece_class(name)
    with show_progress(len(names) + len(suite.mistakes_in(names))) as step:
        return suite.verify_all(names, step)


@contextmanager
def show_progress(steps: int) -> Iterator[Callable[[str], None]]:
    """Show a bar on a terminal, and nothing elsewhere; call the result at every step."""
    from rich.progress import TimeElapsedColumn

    from fedfm.run.console import make_bars

    if not sys.stderr.isatty():
        yield lambda what: None
        return
    with make_bars(TimeElapsedColumn(), transient=True) as bars:
        task = bars.add_task("verify", total=steps, completed=-1, status="")
        yield lambda what: bars.update(task, advance=1, status=what)
