"""Options that several commands share."""

from pathlib import Path
from typing import Annotated, Literal

import typer

Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change a setting, e.g. rounds=20, method=fedfm, fedfm.strength=10, model.norm=batch. "
        "Repeatable.",
    ),
]
Format = Annotated[
    Literal["text", "json"], typer.Option("--format", help="For people, or for programs.")
]
With = Annotated[
    list[Path] | None,
    typer.Option(
        "--with", metavar="FILE", help="A TOML file of settings for all cells. Repeatable."
    ),
]
Results = Annotated[Path, typer.Option(help="The folder of the results.")]
Time = Annotated[str | None, typer.Option(metavar="TIME", help="Stop in time, e.g. 25m or 1h30m.")]
Collect = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="Bring results there after every job, without models; also to a .tgz file. For a "
        "machine that is taken away: no job begins that the budget is too short for.",
    ),
]
Quick = Annotated[
    bool, typer.Option("--quick", help="Reduced runs on digits: they show that it works.")
]
RunFirst = Annotated[bool, typer.Option("--run/--no-run", help="Run what is missing first.")]
