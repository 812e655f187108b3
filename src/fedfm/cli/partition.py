"""`fedfm partition`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from fedfm.cli.options import Format, Overrides, Source
from fedfm.core.errors import plural


def partition(
    source: Source = "digits",
    overrides: Overrides = None,
    out: Annotated[Path, typer.Option(help="The picture, a .png or .svg file.")] = Path(
        "partition.png"
    ),
    format: Format = "text",
) -> None:
    """Plot how many samples of each class every client holds."""
    from fedfm.config import load_config
    from fedfm.data.partition import tabulate
    from fedfm.report.partition_picture import draw_partition
    from fedfm.run.prepare import follow_data, load_data

    config = load_config(source, overrides or [])
    config, dataset = follow_data(config, load_data(config))
    clients, kept = config.training.clients, config.training.server_validation
    counts = tabulate(dataset, clients, config.partition, config.seed, kept)
    names = dataset.clients if config.partition.given else tuple(map(str, range(clients)))
    title = (
        f"{dataset.name}, {config.partition.kind}, {plural(clients, 'client')}, seed {config.seed}"
    )
    picture = draw_partition(counts, dataset.classes, title, out, names)
    if format == "json":
        facts = {"picture": str(picture), "clients": names, "counts": counts.tolist()}
        print(json.dumps(facts))
        return
    sizes = counts.sum(1)
    print(
        f"{title}: {sizes.min():,} to {sizes.max():,} samples per client, {sizes.sum():,} in all\n"
        f"picture in {picture}"
    )
