"""Split each client's samples into training and validation samples."""

from collections.abc import Sequence

import numpy as np

from fedfm.core.errors import plural, require
from fedfm.core.rng import generator


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
