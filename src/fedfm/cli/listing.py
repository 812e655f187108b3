"""`fedfm partition`, `fedfm methods`, `fedfm data`: what there is, and how data are dealt out."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedfm import data as sources
from fedfm import models
from fedfm.cli.options import Format, Overrides
from fedfm.cli.run import SOURCE_HELP
from fedfm.config import load_config
from fedfm.data import partition as partitions
from fedfm.engine.networks import copy_model
from fedfm.methods import PIECES, Piece, Task, compose
from fedfm.report import partition_picture
from fedfm.rounds import costs
from fedfm.run.prepare import load_data


def partition(
    source: Annotated[str, typer.Argument(metavar="CONFIG", help=SOURCE_HELP)] = "digits",
    overrides: Overrides = None,
    out: Annotated[Path, typer.Option(help="The picture, .png or .svg.")] = Path("partition.png"),
    format: Format = "text",
) -> None:
    """Draw which client holds how many samples of which class."""
    config = load_config(source, overrides or [])
    dataset, clients = load_data(config), config.training.clients
    table = partitions.tabulate(dataset, clients, config.partition, config.seed)
    title = f"{dataset.name}, {config.partition.kind}, {clients} clients, seed {config.seed}"
    picture = partition_picture.draw(table, dataset.classes, title, out)
    if format == "json":
        print(json.dumps({"picture": str(picture), "counts": table.tolist()}))
        return
    sizes = table.sum(1)
    print(
        f"{title}: {sizes.min():,} to {sizes.max():,} samples a client, {sizes.sum():,} in all\n"
        f"picture in {picture}"
    )


def methods(format: Format = "text") -> None:
    """List the methods: hyper-parameters, what server and clients keep, what is sent.

    Memory and floats are multiples of a model's, here ResNet18 with 10 classes.
    """
    rows = [method_row(name, piece) for name, piece in PIECES.items()]
    if format == "json":
        print(json.dumps(rows))
        return
    table = Table("method", "what it does", "defaults", "keeps and sends")
    for row in rows:
        settings = "\n".join(f"{key} = {value}" for key, value in row["defaults"].items())
        costs = "\n".join(f"{key}: {value}" for key, value in row["costs"].items() if value)
        table.add_row(row["name"], escape(row["what"]), settings, costs)
    Console().print(table)


def method_row(name: str, piece: type[Piece]) -> dict[str, Any]:
    """A method as plain values."""
    defaults = {field.name: field.default for field in fields(piece)}
    return {
        "name": name,
        "what": next(iter((piece.__doc__ or "").splitlines()), ""),
        "defaults": defaults,
        "costs": method_costs(piece()),
    }


def method_costs(piece: Piece) -> dict[str, str]:
    """What server and client keep by name, and memory and traffic in multiples of the model's."""
    shape, classes = (3, 32, 32), 10
    with torch.device("meta"):
        network = models.build("resnet18", shape=shape, classes=classes)
    task = Task(copy_model(network), classes, models.feature_dim(network))
    found = costs.measure_cost(compose(piece), network, shape, classes)
    size = models.count_parameters(network)
    return {
        "server keeps": ", ".join(piece.server_state(task)),
        "client keeps": ", ".join(piece.client_state(task)),
        "memory": f"{found.memory / size:.5g}",
        "floats up": f"{found.floats_up / size:.5g}",
        "handshakes": f"{found.handshakes:.0f}",
    }


def data(
    dir: Annotated[Path | None, typer.Option(help="Where downloaded files are kept.")] = None,
    format: Format = "text",
) -> None:
    """List the data sets, and whether their files are here."""
    rows: list[dict[str, Any]] = [
        {
            "name": each.source.name,
            "description": each.source.description,
            "present": each.present,
            "folder": str(each.folder),
            "missing": list(each.missing),
        }
        for each in sources.status(dir)
    ]
    if format == "json":
        print(json.dumps(rows))
        return
    table = Table("data", "what it is", "here")
    for row in rows:
        here = "yes" if row["present"] else f"no: needs {', '.join(row['missing'])}"
        table.add_row(row["name"], row["description"], here)
    Console().print(table)
    print(f"files are kept in {sources.data_folder(dir)} (change it with --dir or FEDFM_DATA)")
