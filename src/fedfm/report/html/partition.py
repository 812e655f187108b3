"""The chart of a partition, dealt again from the config of a run where the data are at hand."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from fedfm.config import Config, DataConfig, parse
from fedfm.data import partition as partitions
from fedfm.data.dataset import Dataset
from fedfm.report.html.group import thin_indices
from fedfm.report.html.load import LoadedRun
from fedfm.report.html.svg import WIDTH, Group, draw_rectangles, new_picture, to_markup
from fedfm.run.prepare import follow_data, load_data

LEFT, TOP = 54.0, 30.0
"""Where the cells begin."""
SHADES = 6
"""How many style.css has, from few samples to many; no samples: shade 0."""
FEW = 20
"""Up to so many clients and classes, the cells have room for numbers."""
MOST_CLIENTS = 200
"""At most so many clients are drawn."""


def draw_partition_of(run: LoadedRun, name: str) -> tuple[Markup | None, str]:
    """Draw a run's partition and describe it; nothing is downloaded."""
    if run.own_data:
        return None, "The clients brought their own data, and only they know how many."
    if "digest" in run.config.get("data", {}):
        return None, "The partition is not drawn: the run was given its data in Python."
    try:
        left_out = ("method", "metrics", "code")
        config = parse({k: v for k, v in run.config.items() if k not in left_out})
        config, dataset = follow_data(config, _load_data(config.data))
        clients, kept = config.training.clients, config.training.server_validation
        table = partitions.tabulate(dataset, clients, config.partition, config.seed, kept)
    except (ValueError, OSError) as problem:
        return None, f"The partition is not drawn: {str(problem).rstrip('.')}."
    sizes = table.sum(1)
    about = f"Seed {run.seed}: {sizes.min():,} to {sizes.max():,} training samples a client."
    if len(table) > MOST_CLIENTS:
        about += f" The first {MOST_CLIENTS} of {len(table):,} clients are drawn."
    return draw_partition_cells(table, dataset.classes, name), about


def list_classes(run: LoadedRun, count: int) -> list[str]:
    """Return the names of the classes where the data are at hand, else their numbers."""
    numbers = [str(label) for label in range(count)]
    if run.own_data or "digest" in run.config.get("data", {}):
        return numbers
    try:
        names = _load_data(parse({"data": run.config.get("data", {})}).data).classes
    except (ValueError, OSError):
        return numbers
    return [*names] if len(names) == count else numbers


@lru_cache(maxsize=2)  # whole data sets
def _load_data(chosen: DataConfig) -> Dataset:
    return load_data(Config(data=chosen), download=False)


def draw_partition_cells(table: NDArray[np.int64], classes: Sequence[str], name: str) -> Markup:
    """Draw the counts [K, C] of each class at each client: clients down, classes across."""
    sizes = table.sum(1)
    description = f"{len(table)} clients hold {sizes.min():,} to {sizes.max():,} samples each."
    texts = "Samples of each class at each client", description, "clients down, classes across"
    rows = [str(k) for k in range(len(table))]
    return draw_cells(table[:MOST_CLIENTS], rows[:MOST_CLIENTS], classes, name, texts)


def draw_cells(
    table: NDArray[Any],
    rows: Sequence[str],
    columns: Sequence[str],
    name: str,
    texts: tuple[str, str, str],
) -> Markup:
    """Draw counts [R, C] as shaded cells; `texts` are title, description and axes."""
    title, description, axes = texts
    width, height = (WIDTH - LEFT - 4) / table.shape[1], float(np.clip(600 / len(table), 4, 24))
    bottom = TOP + height * len(table) + 34
    picture = new_picture(name, "cells", title, description)
    shades = np.ceil(SHADES * np.sqrt(table / max(int(table.max()), 1))).astype(int)
    gap = 1.5 if max(table.shape) <= FEW else 0.4
    for shade in range(SHADES + 1):
        places = [(LEFT + c * width, TOP + k * height) for k, c in np.argwhere(shades == shade)]
        picture.path(draw_rectangles(places, width - gap, height - gap), f"s{shade}")
    x, y = (np.arange(n) + 0.5 for n in table.shape[::-1])
    centres = LEFT + x * width, TOP + y * height
    _label_cells(picture.group("grid"), rows, columns, *centres)
    picture.text(WIDTH / 2, bottom - 10, axes, "middle name")
    if max(table.shape) <= FEW:
        _write_counts(picture, table, shades > SHADES // 2, *centres)
    return to_markup(picture, bottom)


def _label_cells(
    axes: Group, rows: Sequence[str], columns: Sequence[str], x: NDArray[Any], y: NDArray[Any]
) -> None:
    for c in thin_indices(len(x), FEW if max(map(len, columns)) < 3 else 6):
        axes.text(x[c], TOP - 9, str(columns[c])[:10], "middle")
    for k in thin_indices(len(y), FEW if len(y) <= FEW else 8):
        axes.text(LEFT - 9, y[k] + 4.5, str(rows[k])[:6], "end")


def _write_counts(
    picture: Group, table: NDArray[Any], light: NDArray[Any], x: NDArray[Any], y: NDArray[Any]
) -> None:
    for (k, c), count in np.ndenumerate(table):
        kind = "count middle light" if light[k, c] else "count middle"
        picture.text(float(x[c]), float(y[k]) + 4, f"{count:,}" if count else "·", kind)
