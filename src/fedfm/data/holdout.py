"""Hold out samples for validation: each client's own, or some that the server keeps."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedfm.core.errors import plural, require
from fedfm.core.rng import generator

Ints = NDArray[np.int64]


def hold_out(
    shards: Sequence[np.ndarray], fraction: float, seed: int, names: Sequence[str] = ()
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Split every client's samples [n_k] into training and validation samples, both sorted."""
    known = names or [*map(str, range(len(shards)))]
    parts = [hold_out_client(k, shard, fraction, seed, known[k]) for k, shard in enumerate(shards)]
    return [training for training, _ in parts], [validation for _, validation in parts]


def validation_size(samples: int, fraction: float) -> int:
    """Return how many of a client's samples are for validation."""
    return int(np.floor(fraction * samples + 0.5))


def hold_out_client(
    client: int, shard: np.ndarray, fraction: float, seed: int, name: str = ""
) -> tuple[np.ndarray, np.ndarray]:
    """Split one client's sorted `shard` [n] into training and validation samples, both sorted.

    With fraction = 0 all samples are for training. The split depends on positions in the shard
    only: arange(n) gives the same positions.
    """
    size = validation_size(len(shard), fraction)
    parts = {"validation": size, "training": len(shard) - size}
    for kind, count in parts.items() if fraction else ():
        require(
            count > 0,
            f"client {name or client} has {plural(len(shard), 'sample')}, which leaves none for "
            f"{kind}: give it more, use fewer clients or another validation share",
        )
    order = generator(seed, "validation", client).permutation(shard)
    return np.sort(order[size:]), np.sort(order[:size])


def split_for_server(labels: NDArray[np.int64], count: int, seed: int) -> tuple[Ints, Ints]:
    """Split samples with `labels` [N] between the clients and the server, which keeps `count`.

    The server keeps the same share of every class, within one sample, drawn by the seed.

    Returns:
        The samples of the clients [N - count] and of the server [count], both sorted.
    """
    require(
        count < len(labels),
        f"server_validation = {count} leaves nothing for the clients: there are {len(labels)} "
        "training samples",
    )
    kept = np.zeros(len(labels), bool)
    for label, number in enumerate(_share_out(np.bincount(labels), count)):
        of_class = np.flatnonzero(labels == label)
        order = generator(seed, "server validation", label).permutation(of_class)
        kept[order[:number]] = True
    return np.flatnonzero(~kept), np.flatnonzero(kept)


def _share_out(sizes: Ints, count: int) -> Ints:
    """Return how many of `count` samples each class gives; the largest remainders round up."""
    exact = sizes * count
    shares: Ints = exact // sizes.sum()
    largest = np.argsort(-(exact % sizes.sum()), kind="stable")
    shares[largest[: count - shares.sum()]] += 1
    return shares
