"""Arguments and options that several commands share."""

from importlib import resources
from pathlib import Path
from typing import Annotated, Literal

import typer

BUILTIN = sorted(
    entry.name.removesuffix(".toml")
    for entry in (resources.files("fedfm") / "config" / "builtin").iterdir()
    if entry.name.endswith(".toml")
)
"""The built-in configs, listed without importing the package that reads them."""
SOURCE_HELP = f"A TOML file, or the name of a built-in config: {', '.join(BUILTIN)}."
Source = Annotated[str, typer.Argument(metavar="CONFIG", help=SOURCE_HELP)]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change a setting, for example rounds=20, method=fedfm, fedfm.strength=10 or "
        "model.norm=batch. Repeatable.",
    ),
]
Format = Annotated[
    Literal["text", "json"],
    typer.Option("--format", help="Print text for people, or JSON for programs."),
]
FinishedRun = Annotated[
    Path,
    typer.Argument(metavar="RUN", help="Folder of a finished run, or of a client in a deployment."),
]
Client = Annotated[
    str | None,
    typer.Option(
        metavar="CLIENT",
        help="Use the model of this client, by number or name, where clients have their own.",
        show_default="the global model",
    ),
]
TableFormat = Annotated[
    Literal["text", "markdown", "latex", "csv", "json"],
    typer.Option("--format", help="Format of the table."),
]
With = Annotated[
    list[Path] | None,
    typer.Option(
        "--with", metavar="FILE", help="A TOML file of settings for all runs. Repeatable."
    ),
]
Results = Annotated[Path, typer.Option(help="Folder of the results.")]
Time = Annotated[
    str | None, typer.Option(metavar="TIME", help="Stop after this time, for example 25m or 1h30m.")
]
Collect = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="Copy the results, without models, to this folder or .tgz file after every job. For "
        "a machine that you will lose: jobs that do not fit into the budget are not started.",
    ),
]
Quick = Annotated[
    bool,
    typer.Option("--quick", help="Use small runs on digits, to see that everything works."),
]
RunFirst = Annotated[bool, typer.Option("--run/--no-run", help="Run what is missing first.")]
Keys = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Folder with the keys of this machine, for TLS and authentication (see `fedfm keys`).",
    ),
]
Insecure = Annotated[
    bool,
    typer.Option("--insecure", help="Allow a network connection without TLS and authentication."),
]
LogJson = Annotated[
    bool, typer.Option("--log-json", help="Write the log as JSON, one object per line.")
]
