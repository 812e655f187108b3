"""Divide a labelled data set among clients: evenly, or in three heterogeneous ways.

Every kind but the even one first makes a table [K, C]: how many samples of each class each client
gets. The shuffled samples of each class are then dealt by it. No sample is dealt twice, and none is
left over except in the case described at `Partition.missing`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fedfm.core.errors import UserError, require, require_numbers, unknown
from fedfm.core.rng import generator
from fedfm.data import margins
from fedfm.data.dataset import Dataset
from fedfm.data.margins import Floats, Ints

Kind = Literal["iid", "niid1", "niid2", "niid3"]

REDRAWS = 1000
"""How often NIID-1 is redrawn before giving up."""

_TABLE, _DEAL = 0, 1  # what the keyed generators are for


@dataclass(frozen=True)
class Partition:
    """How a data set is divided; each field applies only to the kind that its note names.

    Examples:
        >>> import fedfm
        >>> from fedfm.data.partition import tabulate
        >>> digits = fedfm.data.load("digits")
        >>> table = tabulate(digits, 10, Partition("niid3", missing=8), seed=0)
        >>> (table > 0).sum(axis=1)  # each client holds two of the ten classes
        array([2, 2, 2, 2, 2, 2, 2, 2, 2, 2])
    """

    kind: Kind = "niid1"
    """Even (iid), Dirichlet (niid1), dominant classes (niid2) or missing classes (niid3)."""
    beta: float = 0.5
    """niid1: the shares of each class are drawn from Dir(beta); smaller is more uneven."""
    min_samples: int = 10
    """niid1: the shares are redrawn until every client holds this many samples."""
    dominance: float = 23 / 3
    """niid2: how many samples of a dominant class a client holds for one of another class."""
    missing: int = 1
    """niid3: client k lacks this many classes; it holds k, k+1, ... k+C-missing-1 (mod C).

    All samples are used if clients of equal size allow it. Otherwise every client gets the same
    number of samples of each class it holds, the largest number that every class can give, and the
    rest stays unused. (A class without samples does not count.)
    """

    def __post_init__(self) -> None:
        """Refuse settings that fit no data set."""
        require_numbers(self)
        if self.kind not in get_args(Kind):
            raise unknown("partition kind", self.kind, get_args(Kind))
        require(
            isfinite(self.beta) and self.beta > 0, f"beta must be above 0 (it is {self.beta:g})"
        )
        require(self.min_samples >= 1, f"min_samples must be at least 1 (it is {self.min_samples})")
        require(
            1 <= self.dominance <= 1e6,
            f"dominance must be from 1 to 1,000,000 (it is {self.dominance:g})",
        )
        require(self.missing >= 0, f"missing must be at least 0 (it is {self.missing})")


def deal(data: Dataset, clients: int, partition: Partition, seed: int) -> list[Ints]:
    """Deal the training samples to the clients.

    Args:
        data: The data set.
        clients: K, the number of clients.
        partition: How to divide them.
        seed: The seed of the draw.

    Returns:
        K sorted vectors of indices into the training samples.
    """
    return deal_labels(data.train.labels.cpu().numpy(), len(data.classes), clients, partition, seed)


def tabulate(data: Dataset, clients: int, partition: Partition, seed: int) -> Ints:
    """Count the training samples of each class that each client gets.

    Args:
        data: The data set.
        clients: K, the number of clients.
        partition: How to divide them.
        seed: The seed of the draw.

    Returns:
        A table [K, C].
    """
    labels, classes = data.train.labels.cpu().numpy(), len(data.classes)
    return count_classes(labels, classes, deal(data, clients, partition, seed))


def deal_labels(
    labels: NDArray[Any], classes: int, clients: int, partition: Partition, seed: int
) -> list[Ints]:
    """Deal samples with `labels` [N] in 0..classes-1; return each client's sorted indices."""
    _check(labels, classes, clients)
    labels = labels.astype(np.int64)
    rng = generator(seed, "partition", _DEAL)
    if partition.kind == "iid":
        return [np.sort(part) for part in np.array_split(rng.permutation(len(labels)), clients)]
    sizes = np.bincount(labels, minlength=classes)
    table = _TABLES[partition.kind](sizes, clients, partition, generator(seed, "partition", _TABLE))
    empty = np.flatnonzero(table.sum(1) == 0)
    require(
        len(empty) == 0,
        f"clients {_list_some(empty)} would hold no samples: use fewer clients"
        + (" or a smaller missing" if partition.kind == "niid3" else ""),
    )
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


def _list_some(numbers: NDArray[Any]) -> str:
    """Return the first few numbers as text."""
    return ", ".join(map(str, numbers[:10])) + (", ..." if len(numbers) > 10 else "")


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


# --- NIID-1: Dirichlet shares ---------------------------------------------------------------------


def _dirichlet_table(
    sizes: Ints, clients: int, partition: Partition, rng: np.random.Generator
) -> Ints:
    least, total = partition.min_samples, int(sizes.sum())
    require(
        clients * least <= total,
        f"{clients} clients with min_samples = {least} need {clients * least} samples, but there "
        f"are {total}: use fewer clients or a smaller min_samples",
    )
    for _ in range(REDRAWS):
        table = _dirichlet_draw(sizes, clients, partition.beta, rng)
        if table.sum(1).min() >= least:
            return table
    raise UserError(
        f"none of {REDRAWS} draws with beta = {partition.beta:g} gave all {clients} clients "
        f"min_samples = {least} samples: use a larger beta, fewer clients"
        + (" or a smaller min_samples" if least > 1 else "")
    )


def _dirichlet_draw(sizes: Ints, clients: int, beta: float, rng: np.random.Generator) -> Ints:
    """Draw the table [K, C]; a client that already has its even share gets no more."""
    drawn = rng.dirichlet(np.full(clients, beta), size=len(sizes))
    table = np.zeros((clients, len(sizes)), np.int64)
    held = np.zeros(clients, np.int64)
    for label, size in enumerate(sizes):
        below_share = held * clients < sizes.sum()
        shares = np.where(below_share, drawn[label], 0.0)
        if not shares.sum() > 0:
            shares = np.where(below_share.any(), below_share, 1.0)
        table[:, label] = _cut(size, shares)
        held += table[:, label]
    return table


def _cut(size: int, shares: Floats) -> Ints:
    """Cut `size` samples at the cumulative `shares` [K]; a share of 0 gets none."""
    ends = shares.cumsum()
    cuts = (ends / ends[-1] * size).astype(np.int64)
    parts: Ints = np.diff(cuts, prepend=0)
    return parts


# --- NIID-2 and NIID-3: a table of weights, scaled to equal clients and rounded -------------------


def _dominant_table(
    sizes: Ints, clients: int, partition: Partition, rng: np.random.Generator
) -> Ints:
    client, label = np.arange(clients)[:, None], np.arange(len(sizes))
    if len(sizes) >= clients:
        dominant = label * clients // len(sizes) == client
    else:
        dominant = client * len(sizes) // clients == label
    return _balance(np.where(dominant, partition.dominance, 1.0), sizes, rng)


def _missing_table(
    sizes: Ints, clients: int, partition: Partition, rng: np.random.Generator
) -> Ints:
    classes, missing = len(sizes), partition.missing
    require(
        missing < classes,
        f"missing = {missing}, but there are {classes} classes: use at most {classes - 1}",
    )
    held = (np.arange(classes) - np.arange(clients)[:, None]) % classes < classes - missing
    unheld = np.flatnonzero((sizes > 0) & ~held.any(0))
    require(
        len(unheld) == 0,
        f"no client would hold class {_list_some(unheld)}: with missing = {missing} use at least "
        f"{missing + 1} clients, or with {clients} clients a missing of at most {clients - 1}",
    )
    return _balance(held.astype(np.float64), sizes, rng)


def _balance(weights: Floats, sizes: Ints, rng: np.random.Generator) -> Ints:
    """Return a table [K, C] like `weights` with clients of equal size that uses every sample.

    If zeros among the weights make that impossible, return the best table of equal cells.
    """
    table = margins.round_to_margins(margins.fit(weights, sizes), weights > 0, sizes, rng)
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


_TABLES: dict[str, Callable[[Ints, int, Partition, np.random.Generator], Ints]] = {
    "niid1": _dirichlet_table,
    "niid2": _dominant_table,
    "niid3": _missing_table,
}
