"""Options that several commands share."""

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
