"""`fedfm extend`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedfm.cli.options import Format
from fedfm.cli.run import exit_on_interrupt, print_result, run_and_show
from fedfm.core.errors import require


def extend(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.")],
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of the new run, in all.")],
    out: Annotated[
        Path | None, typer.Option(help="Folder of the new run.", show_default="RUN-ROUNDS")
    ] = None,
    format: Format = "text",
) -> None:
    """Continue a finished run with more rounds, as a new run.

    The result equals that of a run that had all rounds from the start.
    """
    from fedfm.config import load_config
    from fedfm.run.console import log_to_console

    log_to_console()
    recorded = run / "config.toml"
    require(recorded.is_file(), f"{run} is not the folder of a run")
    config = load_config(str(recorded), [f"training.rounds={rounds}"])
    out = out or run.with_name(f"{run.name}-{rounds}")
    require(
        not (out / "config.toml").exists(),
        f"{out} already holds a run; continue it with `fedfm run {out} --resume`, or choose "
        "another --out",
    )
    with exit_on_interrupt(f"continue with `fedfm run {out} --resume`"):
        (result,) = run_and_show([config], [out], resume=False, parents=[run])
    print_result(result, out, format)
