"""Which client held what, counted anew from a run's config where the data are at hand."""

from functools import lru_cache

from markupsafe import Markup

from fedfm.config import Config, DataConfig, parse
from fedfm.data import partition as partitions
from fedfm.data.dataset import Dataset
from fedfm.report.html.reading import FoundRun
from fedfm.report.html.small_charts import MOST_CLIENTS, partition_cells
from fedfm.run.prepare import load_data


def partition_of(run: FoundRun, name: str) -> tuple[Markup | None, str]:
    """The picture of a run's partition and what to say about it; nothing is downloaded."""
    if run.own_data:
        return None, "The clients brought their own data, and only they know how many."
    if "digest" in run.config.get("data", {}):
        return None, "The partition is not drawn: the run was given its data in Python."
    try:
        config = parse({k: v for k, v in run.config.items() if k not in ("method", "code")})
        found = _data(config.data)
        clients, seed = config.training.clients, config.seed
        table = partitions.tabulate(found, clients, config.partition, seed)
    except (ValueError, OSError) as problem:
        return None, f"The partition is not drawn: {str(problem).rstrip('.')}."
    sizes = table.sum(1)
    said = f"Seed {run.seed}: {sizes.min():,} to {sizes.max():,} training samples a client."
    if len(table) > MOST_CLIENTS:
        said += f" The first {MOST_CLIENTS} of {len(table):,} clients are drawn."
    return partition_cells(table, found.classes, name), said


@lru_cache(maxsize=2)  # whole data sets
def _data(chosen: DataConfig) -> Dataset:
    return load_data(Config(data=chosen), download=False)
