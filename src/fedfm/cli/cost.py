"""`fedfm cost`."""

import json
from dataclasses import replace
from typing import Annotated, Any

import torch
import typer

from fedfm import models
from fedfm.cli.options import Format
from fedfm.config import plain_value
from fedfm.core.errors import UserError, require
from fedfm.methods import PIECES, FedFMLite, Piece, compose
from fedfm.rounds import costs
from fedfm.run.console import numeric_table, print_table

MANY = (("1e8 floats", 1e8), ("1e6 floats", 1e6), ("1e3 floats", 1e3))
"""What floats of a whole run are counted in: the largest of which all methods have some."""


def pieces_to_compare() -> list[tuple[str, Piece]]:
    """Every registered method with its defaults; Lite also with rarer exchanges of models."""
    rows: list[tuple[str, Piece]] = [(name, piece()) for name, piece in PIECES.items()]
    lite = FedFMLite()
    rows += [(f"{lite.name}, a={a}", replace(lite, models_every=a)) for a in (2, 5, 10)]
    return rows


def cost(
    model: Annotated[str, typer.Option(help=f"One of {', '.join(models.MODELS)}.")] = "resnet18",
    classes: Annotated[int, typer.Option(help="C, the number of classes.", min=2)] = 10,
    shape: Annotated[str, typer.Option(help="One input: channels x height x width.")] = "3x32x32",
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A model's option, e.g. stem=cifar. Repeatable."),
    ] = None,
    clients: Annotated[int | None, typer.Option(help="K, for the whole process.", min=1)] = None,
    rounds: Annotated[int, typer.Option(help="T, for the whole process.", min=1)] = 100,
    format: Format = "text",
) -> None:
    """What each method keeps and sends, counted from its messages, without training.

    Memory and floats are those of one client in one round, floats in one direction, trainable
    parameters only, as in the paper; bytes are everything on the wire.
    """
    size = parse_shape(shape)
    with torch.device("meta"):
        network = models.build(model, shape=size, classes=classes, **parse_options(option or []))
    rows = []
    for label, piece in pieces_to_compare():
        found = replace(costs.measure_cost(compose(piece), network, size, classes), method=label)
        rows.append(row(found, clients, rounds))
    if format == "json":
        print(json.dumps(rows))
        return
    title = f"{model}, {classes} classes: {models.count_parameters(network):,} parameters"
    show(rows, title, clients, rounds)


def row(found: costs.Cost, clients: int | None, rounds: int) -> dict[str, Any]:
    """A method's costs by name."""
    whole = {"whole_process": found.whole_process(clients, rounds)} if clients else {}
    return found.as_dict() | whole


def show(rows: list[dict[str, Any]], title: str, clients: int | None, rounds: int) -> None:
    """Print the table."""
    large = max(found["bytes_up"] for found in rows) >= 1e5
    unit, size = ("MB", 1e6) if large else ("kB", 1e3)
    least = min(found.get("whole_process", 0) for found in rows)
    many, count = next((each for each in MANY if least >= 10 * each[1]), ("floats", 1.0))
    heads = ["memory", "floats up", "floats down", f"{unit} up", f"{unit} down", "handshakes"]
    if clients:
        heads.append(f"K={clients}, T={rounds}:\n{many}")
    table = numeric_table(title, "method", heads)
    for found in rows:
        name, memory, up, down, bytes_up, bytes_down, handshakes, *whole = found.values()
        sizes = [f"{number / size:,.1f}" for number in (bytes_up, bytes_down)]
        counts = [f"{number:,.0f}" for number in (memory, up, down)]
        process = [f"{number / count:,.0f}" for number in whole]
        table.add_row(name, *counts, *sizes, f"{handshakes:.0f}", *process)
    print_table(table)


def parse_shape(text: str) -> tuple[int, ...]:
    """'3x32x32' as numbers."""
    parts = text.lower().split("x")
    require(
        all(part.isdecimal() and int(part) > 0 for part in parts),
        f"--shape is like 3x32x32 or 64, not '{text}'",
    )
    return tuple(int(part) for part in parts)


def parse_options(texts: list[str]) -> dict[str, Any]:
    """'name=value' texts as a model's options."""
    options: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise UserError(f"--option takes name=value, not '{text}'")
        options[name] = plain_value(value)
    return options
