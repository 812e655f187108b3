"""`fedfm cost`."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedfm.cli.options import Format
from fedfm.core.errors import UserError, require

if TYPE_CHECKING:
    from fedfm.methods import Piece

UNITS = (("1e8 floats", 1e8), ("1e6 floats", 1e6), ("1e3 floats", 1e3))
"""Units for the floats of a whole run: the largest that suits the cheapest method is used."""


def cost(
    model: Annotated[
        str, typer.Option(help="resnet18, resnet50, cnn, mlp or transformer.")
    ] = "resnet18",
    classes: Annotated[int, typer.Option(help="Number of classes.", min=2)] = 10,
    shape: Annotated[
        str, typer.Option(help="Shape of one input: channels x height x width.")
    ] = "3x32x32",
    option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="Set an option of the model, for example stem=cifar. Repeatable.",
        ),
    ] = None,
    clients: Annotated[
        int | None,
        typer.Option(help="Number of clients; adds the floats of a whole run.", min=1),
    ] = None,
    rounds: Annotated[int, typer.Option(help="Number of rounds of that run.", min=1)] = 100,
    format: Format = "text",
) -> None:
    """Show what each method stores and sends, counted from its messages, without training.

    Memory and floats are those of one client in one round, floats in one direction. As in the
    paper, they leave out buffers and class counts. Bytes count everything that is sent.
    """
    import torch

    from fedfm import models
    from fedfm.methods import compose
    from fedfm.rounds.costs import measure_cost

    size, options = _parse_shape(shape), _parse_options(option or [])
    with torch.device("meta"):
        network = models.build(model, shape=size, classes=classes, **options)
        dtype = torch.int64 if models.VOCABULARY in options else torch.float32
        rows, features = [], models.feature_dim(network, torch.zeros(1, *size, dtype=dtype))
    for label, piece in _pieces():
        counted = measure_cost(compose(piece), network, classes, features)
        whole = {"whole_process": counted.whole_process(clients, rounds)} if clients else {}
        rows.append(counted.as_dict() | {"method": label} | whole)
    if format == "json":
        print(json.dumps(rows))
        return
    title = f"{model}, {classes} classes: {models.count_parameters(network):,} parameters"
    _print_rows(rows, title, clients, rounds)


def _pieces() -> list[tuple[str, Piece]]:
    """Return every method with its defaults, and again with rarer exchanges of models."""
    from fedfm.methods import PIECES

    pieces = {name: kind() for name, kind in PIECES.items()}
    rare: list[Any] = [piece for piece in pieces.values() if hasattr(piece, "models_every")]
    rarer = [(f"{p.name}, a={a}", replace(p, models_every=a)) for p in rare for a in (2, 5, 10)]
    return [*pieces.items(), *rarer]


def _print_rows(rows: list[dict[str, Any]], title: str, clients: int | None, rounds: int) -> None:
    from fedfm.run.console import numeric_table, print_table

    large = max(row["bytes_up"] for row in rows) >= 1e5
    unit, size = ("MB", 1e6) if large else ("kB", 1e3)
    sent = [row["whole_process"] for row in rows if row.get("whole_process")]
    least = min(sent, default=0)
    many, count = next((pair for pair in UNITS if least >= 10 * pair[1]), ("floats", 1.0))
    heads = ["memory", "floats up", "floats down", f"{unit} up", f"{unit} down", "handshakes"]
    if clients:
        heads.append(f"K={clients}, T={rounds}:\n{many}")
    table = numeric_table(title, "method", heads)
    for row in rows:
        name, memory, up, down, bytes_up, bytes_down, handshakes, *_ = row.values()
        whole = [row["whole_process"]] if clients else []
        sizes = [f"{number / size:,.1f}" for number in (bytes_up, bytes_down)]
        counts = [f"{number:,.0f}" for number in (memory, up, down)]
        process = [f"{number / count:,.0f}" for number in whole]
        table.add_row(name, *counts, *sizes, f"{handshakes:.0f}", *process)
    print_table(table)


def _parse_shape(text: str) -> tuple[int, ...]:
    """Return '3x32x32' as numbers."""
    parts = text.lower().split("x")
    require(
        all(part.isdecimal() and int(part) > 0 for part in parts),
        f"--shape is like 3x32x32 or 64, not '{text}'",
    )
    return tuple(int(part) for part in parts)


def _parse_options(texts: list[str]) -> dict[str, Any]:
    """Return 'name=value' texts as options of a model."""
    from fedfm.config import plain_value

    options: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise UserError(f"--option takes name=value, not '{text}'")
        options[name] = plain_value(value)
    return options
