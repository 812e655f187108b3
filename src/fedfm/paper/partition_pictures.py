"""The recipe that trains nothing: which client holds what, drawn for every cell."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from fedfm.config import Config
from fedfm.data import partition as partitions
from fedfm.data.dataset import Dataset
from fedfm.grid.recipe import Recipe, cells
from fedfm.report import partition_picture


def draw_partitions(
    recipe: Recipe, quick: bool, overrides: Iterable[str], folder: Path
) -> Iterator[dict[str, Any]]:
    """A picture for every cell; what it shows and where it is, as plain values."""
    from fedfm.run.prepare import load_data

    for cell in cells(recipe, quick, overrides):
        config = cell.resolved
        path = folder / f"{'-'.join(cell.labels.values())}{'-quick' if quick else ''}.png"
        yield cell.labels | _drawn(config, load_data(config), cell.title, path)


def _drawn(config: Config, dataset: Dataset, title: str, path: Path) -> dict[str, Any]:
    clients, seed = config.training.clients, config.seed
    table = partitions.tabulate(dataset, clients, config.partition, seed)
    heading = f"{title}: {dataset.name}, {clients} clients, seed {seed}"
    picture = partition_picture.draw(table, dataset.classes, heading, path)
    sizes = table.sum(1)
    return {
        "data": dataset.name,
        "clients": clients,
        "smallest": int(sizes.min()),
        "largest": int(sizes.max()),
        "picture": str(picture),
    }
