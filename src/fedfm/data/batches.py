"""Which samples a client trains on, step by step."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedfm.core.rng import generator, torch_seed
from fedfm.data import augment


@dataclass(frozen=True)
class Plan:
    """A client's local training in one round: a batch of indices [B_t] for every step t.

    `draws` are the augmentation's random numbers [B_t, 4] for each batch, if there is any;
    `seed` is for layers that draw their own (dropout).
    """

    batches: list[Tensor]
    draws: list[Tensor] | None
    seed: int


def epoch_batches(
    indices: np.ndarray, batch_size: int, keep_last: bool, rng: np.random.Generator
) -> list[np.ndarray]:
    """One epoch in a fresh order; the last incomplete batch is dropped unless `keep_last`.

    A client with fewer samples than a batch trains on all of them at once.
    """
    order = rng.permutation(indices)
    if len(order) <= batch_size:
        return [order]
    whole = len(order) // batch_size * batch_size
    batches = list(order[:whole].reshape(-1, batch_size))
    return [*batches, order[whole:]] if keep_last and whole < len(order) else batches


def plan(
    indices: np.ndarray,
    *,
    epochs: int,
    batch_size: int,
    keep_last: bool,
    augmented: bool,
    key: tuple[int, int, int],
) -> Plan:
    """The plan of one client for one round; `key` is (seed, round, client)."""
    seed, *rest = key
    rng = generator(seed, "batches", *rest)
    batches = [
        torch.from_numpy(batch)
        for _ in range(epochs)
        for batch in epoch_batches(indices, batch_size, keep_last, rng)
    ]
    draws = None
    if augmented:
        rng = generator(seed, "augment", *rest)
        draws = [augment.draw(rng, len(batch)) for batch in batches]
    return Plan(batches, draws, torch_seed(seed, "layers", *rest))
