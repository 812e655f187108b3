"""`fedfm methods`."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from fedfm.cli.options import Format

if TYPE_CHECKING:
    from torch import nn

    from fedfm.methods import Piece

CLASSES = 10
"""The classes of the network that costs are multiples of."""


def methods(format: Format = "text") -> None:
    """List the methods with their settings, what they store and what they send.

    Memory and floats are multiples of the model's size, here of a ResNet18 with 10 classes.
    """
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Column, Table

    from fedfm.methods import PIECES

    network = _build_network()
    rows = [_describe(name, piece, network) for name, piece in PIECES.items()]
    if format == "json":
        print(json.dumps(rows))
        return
    settings = Column("settings", no_wrap=True)
    table = Table("method", "what it does", settings, "stores and sends")
    for row in rows:
        defaults = "\n".join(f"{key} = {value}" for key, value in row["defaults"].items())
        costs = "\n".join(f"{key}: {value}" for key, value in row["costs"].items() if value)
        table.add_row(row["name"], escape(row["what"]), defaults, costs)
    Console().print(table)


def _build_network() -> nn.Module:
    """Return the network that costs are multiples of, without memory."""
    import torch

    from fedfm import models

    with torch.device("meta"):
        return models.build("resnet18", shape=(3, 32, 32), classes=CLASSES)


def _describe(name: str, piece: type[Piece], network: nn.Module) -> dict[str, Any]:
    """Return a method's name, first line of documentation, settings and costs."""
    return {
        "name": name,
        "what": next(iter((piece.__doc__ or "").splitlines()), ""),
        "defaults": {field.name: field.default for field in fields(piece)},
        "costs": _costs(piece(), network),
    }


def _costs(piece: Piece, network: nn.Module) -> dict[str, str]:
    """Return what server and clients keep, and memory and traffic in multiples of the model."""
    from fedfm import models
    from fedfm.engine.networks import copy_model, describe_task
    from fedfm.methods import compose
    from fedfm.rounds.costs import measure_cost

    task = describe_task(network, copy_model(network), CLASSES, models.feature_dim(network))
    costs = measure_cost(compose(piece), network, CLASSES, task.features)
    size = models.count_parameters(network)
    return {
        "server keeps": ", ".join(piece.server_state(task)),
        "client keeps": ", ".join(piece.client_state(task)),
        "memory": f"{costs.memory / size:.5g}",
        "floats up": f"{costs.floats_up / size:.5g}",
        "handshakes": f"{costs.handshakes:.0f}",
    }
