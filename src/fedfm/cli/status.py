"""`fedfm status`."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from fedfm.cli.options import Format


def status(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a server's run.")],
    format: Format = "text",
) -> None:
    """Show the state of a server: rounds, clients, errors, privacy spent.

    The exit code is 1 if the server does not run and its run is not finished.
    """
    from fedfm.deploy.operations.status import OVER, read_status

    values = read_status(run)
    if format == "json":
        print(json.dumps(values, indent=1))
    else:
        _print(values)
    if not values["alive"] and values["phase"] not in OVER[:1]:
        raise typer.Exit(1)


def _print(values: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(highlight=False)
    facts = Table(show_header=False, box=None, pad_edge=False)
    for name, value in _list_facts(values):
        facts.add_row(f"[bold]{name}", escape(value))
    console.print(facts)
    if values["clients"]:
        table = Table("client", "state", "answered", "late", "left out", "reason")
        for each in values["clients"]:
            cells = [each[key] for key in ("name", "state", "answered", "late", "left_out")]
            table.add_row(*(escape(str(cell)) for cell in cells), escape(each["reason"] or ""))
        console.print(table)
    for each in values["refused"]:
        console.print(escape(f"refused: node {each['node']}: {each['reason']}"))


def _list_facts(values: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what is told in one line each."""
    health = "" if values["healthy"] else ", but makes no progress"
    yield "server", f"alive{health}" if values["alive"] else _describe_end(values)
    yield "rounds", f"{values['round']} of {values['rounds']} ({values['phase']})"
    states = [each["state"] for each in values["clients"]]
    absent = [f"{states.count(state)} {state}" for state in dict.fromkeys(states) if state != "in"]
    yield "clients", ", ".join([f"{states.count('in')} in", *absent])
    if values["seconds_per_round"] is not None:
        yield "a round takes", f"{values['seconds_per_round']:.1f} s"
    if values["epsilon"] is not None:
        server = values["epsilon_server"]
        more = f"; against the server {float(server):.2f}" if server is not None else ""
        yield "epsilon", f"{float(values['epsilon']):.2f} (delta {values['delta']:g}){more}"
    for each in values["certificates"]:
        yield each["file"], f"valid until {each['expires'][:10]}"
    if values["error"]:
        yield "last error", f"{values['error']['time'][:19]} {values['error']['text']}"
    yield "audit log", f"{values['audit']['entries']} entries, hash {values['audit']['hash']}"


def _describe_end(values: dict[str, Any]) -> str:
    if values["phase"] in ("finished", "stopped"):
        return str(values["phase"])
    return f"not running: last sign of life {values['beat'][:19]} UTC; continue with --resume"
