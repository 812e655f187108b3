"""Each client's training and validation samples."""

from collections.abc import Sequence

import numpy as np

from fedfm.core.errors import require
from fedfm.core.rng import generator


def hold_out(
    shards: Sequence[np.ndarray], fraction: float, seed: int
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Split every client's samples [n_k] into training and validation samples, both sorted."""
    training, validation = [], []
    for client, shard in enumerate(shards):
        size = int(np.floor(fraction * len(shard) + 0.5))
        for kind, left in (("validation", size), ("training", len(shard) - size)):
            require(
                left > 0,
                f"client {client} has {len(shard)} samples, which leaves none for {kind}; "
                "use fewer clients or another validation share",
            )
        order = generator(seed, "validation", client).permutation(shard)
        validation.append(np.sort(order[:size]))
        training.append(np.sort(order[size:]))
    return training, validation
