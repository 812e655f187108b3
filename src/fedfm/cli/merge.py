"""`fedfm merge`."""

from pathlib import Path
from typing import Annotated

import typer

from fedfm.core.errors import plural


def merge(
    folders: Annotated[list[Path], typer.Argument(help="Result folders, or .tgz files of them.")],
    into: Annotated[Path, typer.Option(help="The folder to add the results to.")] = Path("results"),
    models: Annotated[bool, typer.Option("--models", help="Copy the best models too.")] = False,
) -> None:
    """Add results from other machines to a folder; nothing in it is changed or removed.

    Runs that both have are compared: the same config and seed should give the same rounds.
    """
    from fedfm.grid.merge import merge as merge_results
    from fedfm.run.console import log_to_console

    log_to_console()
    for folder in folders:
        merged = merge_results(folder, into, models)
        results, runs = plural(merged.results, "result"), plural(merged.runs, "run folder")
        print(f"{folder}: added {results} and {runs} to {into}")
        if merged.repeats:
            same = sum(repeat.same for repeat in merged.repeats)
            repeated = plural(len(merged.repeats), "run")
            print(f"{folder}: {repeated} existed already, {same} of them with the same rounds")
