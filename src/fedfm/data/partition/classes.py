"""Partitions by classes: dominant ones, missing ones, a majority, shards of sorted samples."""

import numpy as np
from numpy.typing import NDArray

from fedfm.core.errors import list_some, require
from fedfm.data.partition import count_tables
from fedfm.data.partition.count_tables import Floats, Ints
from fedfm.data.partition.settings import Partition

# --- NIID-2 and NIID-3: a table of weights, scaled to equal clients and rounded -------------------


def favour_classes(
    sizes: Ints, clients: int, partition: Partition, rng: np.random.Generator
) -> Ints:
    """Make the table [K, C] of NIID-2: every client has dominant classes."""
    client, label = np.arange(clients)[:, None], np.arange(len(sizes))
    if len(sizes) >= clients:
        dominant = label * clients // len(sizes) == client
    else:
        dominant = client * len(sizes) // clients == label
    return _balance(np.where(dominant, partition.dominance, 1.0), sizes, rng)


def withhold_classes(
    sizes: Ints, clients: int, partition: Partition, rng: np.random.Generator
) -> Ints:
    """Make the table [K, C] of NIID-3: every client lacks `missing` classes."""
    classes, missing = len(sizes), partition.missing
    require(
        missing < classes,
        f"missing = {missing}, but there are {classes} classes: use at most {classes - 1}",
    )
    held = (np.arange(classes) - np.arange(clients)[:, None]) % classes < classes - missing
    unheld = np.flatnonzero((sizes > 0) & ~held.any(0))
    require(
        len(unheld) == 0,
        f"no client would hold class {list_some(unheld)}: with missing = {missing} use at least "
        f"{missing + 1} clients, or with {clients} clients a missing of at most {clients - 1}",
    )
    return _balance(held.astype(np.float64), sizes, rng)


def _balance(weights: Floats, sizes: Ints, rng: np.random.Generator) -> Ints:
    """Return a table [K, C] like `weights` with clients of equal size that uses every sample.

    If zeros among the weights make that impossible, return the best table of equal cells.
    """
    table = count_tables.round_to_margins(
        count_tables.scale_to_margins(weights, sizes), weights > 0, sizes, rng
    )
    return _equal_cells(weights > 0, sizes) if table is None else table


def _equal_cells(held: NDArray[np.bool_], sizes: Ints) -> Ints:
    """Put as many samples into each `held` cell [K, C] as every class with samples can give."""
    cells = held & (sizes > 0)
    per_cell = np.where(sizes > 0, sizes // np.maximum(cells.sum(0), 1), sizes.max())
    scarce = int(per_cell.argmin())
    require(
        per_cell[scarce] > 0,
        f"class {scarce} has {sizes[scarce]} samples for the {cells[:, scarce].sum()} clients "
        "that hold it: use fewer clients or a larger missing",
    )
    return np.where(cells, per_cell[scarce], 0)


# --- A majority: few samples, many of them of one class -------------------------------------------


def favour_one_class(
    sizes: Ints, clients: int, partition: Partition, rng: np.random.Generator
) -> Ints:
    """Make the table [K, C] of majority: `size` samples a client, `share` of them of one class."""
    classes = len(sizes)
    favoured = round(partition.share * partition.size) if classes > 1 else partition.size
    whole, rest = divmod(partition.size - favoured, max(classes - 1, 1))
    table = np.zeros((clients, classes), np.int64)
    for client in range(clients):
        order = (client + np.arange(classes)) % classes  # its own class, then the following ones
        table[client, order] = whole + (np.arange(classes) <= rest)
        table[client, order[0]] = favoured
    scarce = int((sizes - table.sum(0)).argmin())
    require(
        table[:, scarce].sum() <= sizes[scarce],
        f"class {scarce} has {sizes[scarce]} samples, but {clients} clients with size = "
        f"{partition.size} and share = {partition.share:g} need {table[:, scarce].sum()}: use "
        "fewer clients or a smaller size",
    )
    return table


# --- Shards: the samples sorted by class, cut into pieces -----------------------------------------


def deal_shards(sizes: Ints, clients: int, partition: Partition, rng: np.random.Generator) -> Ints:
    """Make the table [K, C] of shards: sort the samples by class, cut them, deal the pieces.

    The K * `shards` pieces are of equal size within one sample (McMahan et al., 2017).
    """
    pieces, total = clients * partition.shards, int(sizes.sum())
    require(
        pieces <= total,
        f"{clients} clients with shards = {partition.shards} need {pieces} samples, but there are "
        f"{total}: use fewer clients or fewer shards",
    )
    cuts = np.arange(pieces + 1)[:, None] * total // pieces
    class_ends = sizes.cumsum()
    below = np.clip(cuts - (class_ends - sizes), 0, sizes)  # samples of each class before each cut
    counts = np.diff(below, axis=0)
    dealt = rng.permutation(pieces).reshape(clients, partition.shards)
    table: Ints = counts[dealt].sum(1)
    return table
