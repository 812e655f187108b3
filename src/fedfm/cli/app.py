"""The commands by name. Their modules import what they need when they run: help needs no torch."""

from pathlib import Path
from typing import Annotated

import typer

from fedfm import __version__
from fedfm.cli import (
    cost,
    demo,
    deploy,
    export,
    features,
    listing,
    merge,
    report,
    reproduce,
    run,
    table,
    verify,
)

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


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
        typer.Option(metavar="FILE", help="A Python file with a method of your own. Repeatable."),
    ] = None,
) -> None:
    """Federated learning for parties whose data differ: FedFM, its baselines, exact costs."""
    from fedfm.plugins import add_plugins, load_plugins

    add_plugins(methods or [])
    load_plugins()


app.command("run")(run.run)
app.command("cost")(cost.cost)
app.command("partition")(listing.partition)
app.command("methods")(listing.methods)
app.command("data")(listing.data)
app.command("demo")(demo.demo)
app.command("verify")(verify.verify)
app.command("table")(table.table)
app.command("reproduce")(reproduce.reproduce)
app.command("merge")(merge.merge)
app.command("export")(export.export)
app.command("features")(features.features)
app.command("report")(report.report)
app.command("keys")(deploy.keys)
app.command("serve")(deploy.serve)
app.command("join")(deploy.join)
