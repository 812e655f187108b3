"""The application and its commands. Help imports nothing heavy: commands import what they need."""

from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from fedfm import __version__
from fedfm.core.errors import require
from fedfm.core.torchrun import is_launched
from fedfm.plugins import add_plugins, load_plugins

COMMANDS = (
    *("run", "extend", "sweep", "cost", "partition", "methods", "data", "demo", "verify"),
    *(
        "table",
        "reproduce",
        "compare",
        "merge",
        "export",
        "features",
        "report",
        "predict",
        "evaluate",
    ),
    *("export_model", "keys", "serve", "join", "status", "audit"),
)
"""The commands in the order of the help: each is a function or a group in a module of its name."""

LIGHT = ("join", "status", "audit")
"""Commands whose own process does not load the user's files: the worker of `join` does."""

SHARED = ("run", "extend")
"""Commands whose work several processes can share, as torchrun starts them."""

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


class Command(TyperCommand):
    """A command that loads the user's own methods and models before it runs."""

    def invoke(self, ctx: Any) -> Any:
        """Load the plugins, then run the command."""
        load_plugins()
        return super().invoke(ctx)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"fedfm {__version__}")
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
    methods: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="A Python file with your own method, model, loss or metric. Repeatable.",
        ),
    ] = None,
) -> None:
    """Federated learning for parties whose data differ: FedFM, its baselines, exact costs."""
    command = str(context.invoked_subcommand)
    require(
        command in SHARED or not is_launched(),
        f"{command.replace('_', '-')} is one process and cannot be shared: start it without "
        f"torchrun, which is for: {', '.join(SHARED)}",
    )
    add_plugins(methods or [])


for _name in COMMANDS:
    _command = getattr(import_module(f"fedfm.cli.{_name}"), _name)
    if isinstance(_command, typer.Typer):
        app.add_typer(_command, name=_name)
    else:
        app.command(cls=TyperCommand if _name in LIGHT else Command)(_command)
