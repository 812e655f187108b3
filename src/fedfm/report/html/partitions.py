"""Which client held what, counted anew from a run's config where the data are at hand."""

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from fedfm import data
from fedfm.config import Config, DataConfig, parse
from fedfm.data import partition as partitions
from fedfm.report.html.reading import FoundRun
from fedfm.report.html.small_charts import MOST_CLIENTS, partition_cells


def partition_of(run: FoundRun, name: str) -> tuple[Markup | None, str]:
    """The picture of a run's partition and what to say about it; nothing is downloaded."""
    if "digest" in run.config.get("data", {}):
        return None, "The partition is not drawn: the run was given its data in Python."
    try:
        config = parse(run.config)
        labels, classes = _labels(config.data)
        table = _counts(config, labels, classes)
    except (ValueError, OSError) as problem:
        return None, f"The partition is not drawn: {str(problem).rstrip('.')}."
    sizes = table.sum(1)
    said = f"Seed {run.seed}: {sizes.min():,} to {sizes.max():,} training samples a client."
    if len(table) > MOST_CLIENTS:
        said += f" The first {MOST_CLIENTS} of {len(table):,} clients are drawn."
    return partition_cells(table, classes, name), said


def _counts(config: Config, labels: NDArray[Any], classes: tuple[str, ...]) -> NDArray[np.int64]:
    clients, dealt = config.protocol.clients, config.partition
    shards = partitions.split(labels, len(classes), clients, dealt, config.seed)
    return partitions.counts(labels, len(classes), shards)


@lru_cache
def _labels(chosen: DataConfig) -> tuple[NDArray[Any], tuple[str, ...]]:
    options = chosen.model_dump(exclude={"name"}, exclude_none=True)
    for key in options.keys() & {"dir", "path"}:
        options[key] = Path(options[key]).expanduser()
    found = data.load(chosen.name, download=False, **options)
    return found.train.labels.numpy(), found.classes
