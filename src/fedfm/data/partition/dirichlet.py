"""Partitions by Dirichlet draws: shares of each class, mixtures of classes, sizes of clients."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfm.core.errors import UserError, require
from fedfm.data.partition.count_tables import Floats, Ints
from fedfm.data.partition.settings import Partition

REDRAWS = 1000
"""How often a partition is redrawn before giving up."""


def redraw(draw: Callable[[], Ints], total: int, clients: int, partition: Partition) -> Ints:
    """Return the first draw [K, ...] that gives every client `min_samples` samples."""
    least = partition.min_samples
    require(
        clients * least <= total,
        f"{clients} clients with min_samples = {least} need {clients * least} samples, but there "
        f"are {total}: use fewer clients or a smaller min_samples",
    )
    for _ in range(REDRAWS):
        drawn = draw()
        if drawn.reshape(clients, -1).sum(1).min() >= least:
            return drawn
    raise UserError(
        f"none of {REDRAWS} draws with beta = {partition.beta:g} gave all {clients} clients "
        f"min_samples = {least} samples: use a larger beta, fewer clients"
        + (" or a smaller min_samples" if least > 1 else "")
    )


def draw_sizes(samples: int, clients: int, partition: Partition, rng: np.random.Generator) -> Ints:
    """Draw the clients' sizes [K] (quantity): shares of all samples from Dir(beta)."""
    beta = np.full(clients, partition.beta)
    return redraw(
        lambda: _cut(samples, _draw_simplex(beta, 1, rng)[0]), samples, clients, partition
    )


def _draw_simplex(beta: Floats, draws: int, rng: np.random.Generator) -> Floats:
    """Draw points [draws, n] from Dir(beta); a draw that vanishes (huge beta) is even."""
    drawn = rng.dirichlet(beta, size=draws)
    vanished = ~(drawn.sum(1, keepdims=True) > 0)
    points: Floats = np.where(vanished, (beta > 0) / np.count_nonzero(beta), drawn)
    return points


# --- NIID-1: of each class, shares from Dir(beta) -------------------------------------------------


def share_classes(
    sizes: Ints, clients: int, partition: Partition, rng: np.random.Generator
) -> Ints:
    """Draw the table [K, C] of NIID-1."""
    total = int(sizes.sum())
    return redraw(
        lambda: draw_shares(sizes, clients, partition.beta, rng), total, clients, partition
    )


def draw_shares(sizes: Ints, clients: int, beta: float, rng: np.random.Generator) -> Ints:
    """Draw the table [K, C] once; a client that already has its even share gets no more."""
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


# --- Equal sizes: each client's classes are a mixture from Dir(beta) ------------------------------


def mix_classes(sizes: Ints, clients: int, partition: Partition, rng: np.random.Generator) -> Ints:
    """Draw the table [K, C] of clients of equal size whose mixtures of classes are from Dir(beta).

    A class may be given more often than it has samples if `refill` is set. Otherwise client after
    client takes from what is left.
    """
    mixtures = _draw_simplex(np.where(sizes > 0, partition.beta, 0.0), clients, rng)
    whole, rest = divmod(int(sizes.sum()), clients)
    wanted = np.full(clients, whole) + (np.arange(clients) < rest)
    if partition.refill:
        return rng.multinomial(wanted, mixtures)
    table, left = np.zeros((clients, len(sizes)), np.int64), sizes.copy()
    for client, mixture in enumerate(mixtures):
        table[client] = _take(left, int(wanted[client]), mixture, rng)
        left -= table[client]
    return table


def _take(left: Ints, wanted: int, mixture: Floats, rng: np.random.Generator) -> Ints:
    """Draw `wanted` samples' classes by `mixture` [C]; draw again where a class is used up."""
    taken = np.zeros_like(left)
    while (more := wanted - int(taken.sum())) > 0:
        available = left > taken
        shares = np.where(available, mixture, 0.0)
        if not shares.sum() > 0:
            shares = available.astype(np.float64)
        taken = np.minimum(taken + rng.multinomial(more, shares / shares.sum()), left)
    return taken


def deal_refilled(labels: NDArray[Any], table: Ints, rng: np.random.Generator) -> list[Ints]:
    """Give each client its row of `table` [K, C]; deal the samples of a class in turn, endlessly.

    A sample comes twice to one client only if the client needs more than the class has.
    """
    parts: list[list[Ints]] = [[] for _ in table]
    for label, amounts in enumerate(table.T):
        samples = rng.permutation(np.flatnonzero(labels == label))
        stream = np.resize(samples, int(amounts.sum()))
        for part, piece in zip(parts, np.split(stream, amounts.cumsum()[:-1]), strict=True):
            part.append(piece)
    return [np.sort(np.concatenate(part)) for part in parts]
