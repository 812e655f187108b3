"""Deal the training samples to clients.

Most kinds first make a table [K, C]: how many samples of each class each client gets. The shuffled
samples of each class are then dealt by it. No sample is dealt twice unless a class is refilled.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfm.core.errors import list_some, require
from fedfm.core.rng import generator
from fedfm.data.dataset import Dataset
from fedfm.data.holdout import split_for_server
from fedfm.data.partition import classes as by_classes
from fedfm.data.partition import dirichlet
from fedfm.data.partition.count_tables import Ints
from fedfm.data.partition.feature_skew import skew_features
from fedfm.data.partition.given import deal_given
from fedfm.data.partition.settings import Partition

_TABLE, _DEAL = 0, 1  # what the keyed generators are for

GIVEN = (
    "the data say whose the samples are, so none are left for the server; let clients hold out "
    "validation samples instead (training.validation)"
)

logger = logging.getLogger(__name__)


def divide(
    data: Dataset, clients: int, partition: Partition, seed: int, server: int = 0
) -> tuple[Dataset, list[Ints]]:
    """Return the data as the clients see them, and each client's training samples.

    The server keeps `server` samples. Samples of the result belong to its clients, or to nobody if
    the test samples cannot be divided.
    """
    shards = deal(data, clients, partition, seed, server)
    if partition.changes_inputs:
        return skew_features(data, shards, partition, seed), shards
    if partition.given or not data.clients:
        return data, shards
    logger.warning(
        "the data name %d clients, which partition.kind = '%s' ignores: use kind = 'natural' for "
        "them",
        len(data.clients),
        partition.kind,
    )
    train, test = (replace(split, clients=None) for split in (data.train, data.test))
    return replace(data, train=train, test=test, clients=()), shards


def deal(
    data: Dataset, clients: int, partition: Partition, seed: int, server: int = 0
) -> list[Ints]:
    """Deal the training samples to the clients.

    Args:
        data: The data set.
        clients: K, the number of clients.
        partition: How to divide them.
        seed: The seed of the draw.
        server: How many training samples the server keeps, so that no client gets them.

    Returns:
        K sorted vectors of indices into the training samples.
    """
    if partition.given:
        require(server == 0, f"server_validation = {server}: {GIVEN}")
        return deal_given(data, clients, partition)
    labels, classes = data.train.labels.cpu().numpy(), len(data.classes)
    if not server:
        return deal_labels(labels, classes, clients, partition, seed)
    left, _ = split_for_server(labels, server, seed)
    return [left[part] for part in deal_labels(labels[left], classes, clients, partition, seed)]


def tabulate(data: Dataset, clients: int, partition: Partition, seed: int, server: int = 0) -> Ints:
    """Count the training samples of each class that each client gets.

    Args:
        data: The data set.
        clients: K, the number of clients.
        partition: How to divide them.
        seed: The seed of the draw.
        server: How many training samples the server keeps, so that no client gets them.

    Returns:
        A table [K, C].
    """
    labels, classes = data.train.labels.cpu().numpy(), len(data.classes)
    return count_classes(labels, classes, deal(data, clients, partition, seed, server))


def deal_labels(
    labels: NDArray[Any], classes: int, clients: int, partition: Partition, seed: int
) -> list[Ints]:
    """Deal samples with `labels` [N] in 0..classes-1; return each client's sorted indices."""
    _check(labels, classes, clients)
    labels = labels.astype(np.int64)
    rng, table_rng = (generator(seed, "partition", use) for use in (_DEAL, _TABLE))
    if partition.kind in SIZES:
        sizes = SIZES[partition.kind](len(labels), clients, partition, table_rng)
        cuts = sizes.cumsum()[:-1]
        return [np.sort(part) for part in np.split(rng.permutation(len(labels)), cuts)]
    table = TABLES[partition.kind](
        np.bincount(labels, minlength=classes), clients, partition, table_rng
    )
    empty = np.flatnonzero(table.sum(1) == 0)
    require(
        len(empty) == 0,
        f"clients {list_some(empty)} would hold no samples: use fewer clients"
        + (" or a smaller missing" if partition.kind == "niid3" else ""),
    )
    if partition.kind == "dirichlet" and partition.refill:
        return dirichlet.deal_refilled(labels, table, rng)
    return _deal(labels, table, rng)


def count_classes(labels: NDArray[Any], classes: int, shards: Sequence[Ints]) -> Ints:
    """Count the samples of each class in each of the K `shards`: a table [K, C]."""
    return np.stack([np.bincount(labels[shard], minlength=classes) for shard in shards])


def _check(labels: NDArray[Any], classes: int, clients: int) -> None:
    require(
        labels.ndim == 1 and np.issubdtype(labels.dtype, np.integer),
        f"labels must be a vector of integers, not {labels.dtype} of shape {labels.shape}",
    )
    require(clients >= 1, f"there must be at least 1 client (clients = {clients})")
    require(
        clients <= len(labels),
        f"{clients} clients cannot share {len(labels)} samples: use at most {len(labels)} clients",
    )
    low, high = int(labels.min()), int(labels.max())
    require(
        low >= 0 and high < classes,
        f"labels run from {low} to {high}, but there are {classes} classes (0 to {classes - 1})",
    )


def _deal(labels: NDArray[Any], table: Ints, rng: np.random.Generator) -> list[Ints]:
    """Give each client its row of `table` [K, C] of the shuffled samples; leave the rest unused."""
    clients, classes = table.shape
    shuffled = rng.permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    unused = np.bincount(labels, minlength=classes) - table.sum(0)
    amounts = np.vstack([table, unused]).T
    owners = np.repeat(np.tile(np.arange(clients + 1), classes), amounts.ravel())
    by_owner = by_class[np.argsort(owners, kind="stable")]
    return [np.sort(part) for part in np.split(by_owner, table.sum(1).cumsum())[:clients]]


def _even_sizes(samples: int, clients: int, partition: Partition, rng: np.random.Generator) -> Ints:
    whole, rest = divmod(samples, clients)
    sizes: Ints = whole + (np.arange(clients) < rest)
    return sizes


Draw = Callable[[Any, int, Partition, np.random.Generator], Ints]

SIZES: dict[str, Draw] = {
    "iid": _even_sizes,
    "feature": _even_sizes,
    "quantity": dirichlet.draw_sizes,
}
"""Kinds that deal all shuffled samples, whatever their classes: how many each client gets [K]."""

TABLES: dict[str, Draw] = {
    "niid1": dirichlet.share_classes,
    "niid2": by_classes.favour_classes,
    "niid3": by_classes.withhold_classes,
    "dirichlet": dirichlet.mix_classes,
    "shards": by_classes.deal_shards,
    "majority": by_classes.favour_one_class,
}
"""Kinds that deal each class by itself: how many samples of it each client gets [K, C]."""

KINDS = (*SIZES, *TABLES)
"""The kinds that are drawn."""
