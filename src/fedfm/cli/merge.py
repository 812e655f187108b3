"""`fedfm merge`: results of several machines in one folder, and whether repeated runs agree."""

from pathlib import Path
from typing import Annotated

import typer

from fedfm.grid.merge import merge as merge_results
from fedfm.grid.repeats import Repeat
from fedfm.run.console import log_to_console


def merge(
    folders: Annotated[list[Path], typer.Argument(help="Results of other machines, also as .tgz.")],
    into: Annotated[Path, typer.Option(help="The folder that they are added to.")] = Path(
        "results"
    ),
    models: Annotated[bool, typer.Option("--models", help="Copy the best models too.")] = False,
) -> None:
    """Add the results in some folders to those in another; nothing is changed or removed.

    Runs that are there already are compared: the same config and seed should give the same.
    """
    log_to_console()
    for folder in folders:
        done = merge_results(folder, into, models)
        print(f"{folder}: {done.results} results and {done.runs} run folders added to {into}")
        if done.repeats:
            print(f"{folder}: {in_words(done.repeats)}")


def in_words(repeats: tuple[Repeat, ...]) -> str:
    """How many runs were there already, and how many of them were the same."""
    same = sum(repeat.same for repeat in repeats)
    return f"{len(repeats)} runs were there already, {same} of them with the same rounds"
