"""Tables [K, C] with given margins: K equal row sums, and the class sizes as column sums."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_SCALINGS = 1000  # iterative proportional fitting stops here if it has not converged
_CONVERGED = 1e-8  # ... or when the column sums are off by less than this, all together
_SNAP = 1e-7  # a cell this near to a whole number is that number


def scale_to_margins(weights: Floats, sizes: Ints) -> Floats:
    """Scale the rows and columns of `weights` [K, C] to row sums N/K and column sums `sizes`."""
    table = weights
    row = np.full(len(weights), sizes.sum() / len(weights))
    for _ in range(_SCALINGS):
        table = table * _ratio(sizes, table.sum(0))
        table = table * _ratio(row, table.sum(1))[:, None]
        if np.abs(table.sum(0) - sizes).sum() < _CONVERGED:
            break
    return table


def _ratio(target: NDArray[Any], sums: Floats) -> Floats:
    """Return target / sums elementwise, or 0 where a sum is 0."""
    ratio: Floats = np.divide(target, sums, out=np.zeros_like(sums), where=sums > 0)
    return ratio


def round_to_margins(
    target: Floats, held: NDArray[np.bool_], sizes: Ints, rng: np.random.Generator
) -> Ints | None:
    """Round `target` [K, C] to column sums `sizes` and row sums N/K up or down.

    Every cell is rounded up or down as well. If that is impossible (the scaling did not converge),
    any cell that is `held` may change. Return None if the sums cannot be met even so. The flow
    starts from a random rounding; from zero it would give whole blocks of clients equal rows.
    """
    random = _round_rows(target, rng)
    near = np.floor(target + _SNAP).astype(np.int64), np.ceil(target - _SNAP).astype(np.int64)
    free = np.zeros_like(random), held * sizes
    for lower, upper in (near, free):
        if (lower.sum(1) * len(lower) > sizes.sum()).any() or (lower.sum(0) > sizes).any():
            continue
        start = _fill(lower, lower, random.clip(lower, upper), sizes)
        table = _fill(start, lower, upper, sizes)
        if table.sum() == sizes.sum():
            return table
    return None


def _round_rows(target: Floats, rng: np.random.Generator) -> Ints:
    """Round `target` [K, C] at random: cells and row sums up or down, column sums about right.

    Each row is laid out in a random order of classes and cut at whole numbers plus an offset.
    """
    order = rng.permuted(np.indices(target.shape)[1], axis=1)
    ends = np.take_along_axis(target, order, 1).cumsum(1) + rng.random((len(target), 1))
    rounded = np.zeros(target.shape, np.int64)
    np.put_along_axis(rounded, order, np.diff(ends.astype(np.int64), axis=1, prepend=0), 1)
    return rounded


def _fill(table: Ints, lower: Ints, upper: Ints, sizes: Ints) -> Ints:
    """Change `table` [K, C] within its bounds to hold as many samples as it can.

    This is a maximum flow from a source to the clients (their even share, and for some of them one
    more sample from a pool), on to the classes and from these to a sink.
    """
    from scipy.sparse import block_array, csr_array
    from scipy.sparse.csgraph import maximum_flow

    clients, classes = table.shape
    least, pool = divmod(int(sizes.sum()), clients)
    more = np.maximum(table.sum(1) - least, 0)
    room = np.array([[pool - more.sum()]])
    corner = csr_array((1, 1), dtype=np.int32)
    edges = [  # from each of: clients, classes, pool, source, sink; to each of them
        [None, upper - table, more[:, None], None, None],
        [(table - lower).T, None, None, None, (sizes - table.sum(0))[:, None]],
        [1 - more[None], None, None, corner, None],
        [(least - table.sum(1) + more)[None], None, room, None, None],
        [None, None, None, None, corner],
    ]
    capacity = block_array(edges, format="csr", dtype=np.int32)
    source, sink = clients + classes + 1, clients + classes + 2
    flow = maximum_flow(capacity, source, sink).flow
    change: Ints = flow[:clients, clients : clients + classes].toarray()
    return table + change
