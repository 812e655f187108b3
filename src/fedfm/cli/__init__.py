"""The command line: `fedfm COMMAND`; one module per group of commands."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from fedfm import __version__
from fedfm.algorithms.own import load_methods, name_methods
from fedfm.cli import (
    costing,
    demonstration,
    deploying,
    exporting,
    features,
    listing,
    merging,
    reporting,
    reproducing,
    running,
    tabling,
    verifying,
)
from fedfm.core.errors import UserError

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _say_version(wanted: bool) -> None:
    if wanted:
        print(f"fedfm {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", callback=_say_version, is_eager=True),
    ] = False,
    methods: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="A Python file with a method of your own. Repeatable."),
    ] = None,
) -> None:
    """Federated learning for parties whose data differ: FedFM, its baselines, exact costs."""
    name_methods(methods or [])
    load_methods()


app.command("run")(running.run)
app.command("cost")(costing.cost)
app.command("partition")(listing.partition)
app.command("methods")(listing.methods)
app.command("data")(listing.data)
app.command("demo")(demonstration.demo)
app.command("verify")(verifying.verify)
app.command("table")(tabling.table)
app.command("reproduce")(reproducing.reproduce)
app.command("merge")(merging.merge)
app.command("export")(exporting.export)
app.command("features")(features.features)
app.command("report")(reporting.report)
app.command("keys")(deploying.keys)
app.command("serve")(deploying.serve)
app.command("join")(deploying.join)


def main() -> None:
    """The entry point: a user's mistake is one message and exit code 2."""
    try:
        app()
    except UserError as problem:
        fail(str(problem))
    except OSError as problem:
        where = f" ({problem.filename})" if problem.filename else ""
        fail(f"{problem.strerror or problem}{where}; what was saved before is whole")


def fail(message: str) -> None:
    """Say what is wrong and leave."""
    print(f"fedfm: {message}", file=sys.stderr)
    sys.exit(2)
