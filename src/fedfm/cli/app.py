"""The application and its commands. Help imports nothing heavy: commands import what they need."""

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from fedfm import __version__
from fedfm.cli.cost import cost
from fedfm.cli.data import data
from fedfm.cli.demo import demo
from fedfm.cli.export import export
from fedfm.cli.features import features
from fedfm.cli.join import join
from fedfm.cli.keys import keys
from fedfm.cli.merge import merge
from fedfm.cli.methods import methods
from fedfm.cli.partition import partition
from fedfm.cli.report import report
from fedfm.cli.reproduce import reproduce
from fedfm.cli.run import run
from fedfm.cli.serve import serve
from fedfm.cli.table import table
from fedfm.cli.verify import verify
from fedfm.plugins import add_plugins, load_plugins

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


class Command(TyperCommand):
    """A command that knows the user's own methods and models when it runs."""

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
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
    methods: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="A Python file with your own method or model. Repeatable."
        ),
    ] = None,
) -> None:
    """Federated learning for parties whose data differ: FedFM, its baselines, exact costs."""
    add_plugins(methods or [])


for _command in (
    run,
    cost,
    partition,
    methods,
    data,
    demo,
    verify,
    table,
    reproduce,
    merge,
    export,
    features,
    report,
    keys,
    serve,
    join,
):
    app.command(cls=Command)(_command)
