"""Which samples a client trains on in each step."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedfm.core.rng import generator, torch_seed
from fedfm.data import augment
from fedfm.data.augment import Augmentation


@dataclass(frozen=True)
class BatchPlan:
    """The batches of a client's local training in one round; `sizes` has their sizes in order.

    `indices` [n] are the samples of all batches one after another. `draws` [n, 4] are the random
    numbers of their augmentation, if any. `seed` is for layers that draw random numbers.
    """

    indices: Tensor
    sizes: tuple[int, ...]
    draws: Tensor | None
    seed: int

    @property
    def steps(self) -> int:
        """The number of batches."""
        return len(self.sizes)

    @property
    def batches(self) -> tuple[Tensor, ...]:
        """The samples [B_t] of every step t."""
        return torch.split(self.indices, list(self.sizes))

    def first(self, steps: int) -> "BatchPlan":
        """Return a plan of the first steps only."""
        return self.part(0, steps)

    def first_samples(self, count: int) -> "BatchPlan":
        """Return a plan of one batch of at most so many samples, the first ones."""
        indices = self.indices[: min(count, self.sizes[0])]
        draws = None if self.draws is None else self.draws[: len(indices)]
        return BatchPlan(indices, (len(indices),), draws, self.seed)

    def part(self, begin: int, end: int) -> "BatchPlan":
        """Return a plan of the steps from `begin` to before `end`."""
        where = slice(sum(self.sizes[:begin]), sum(self.sizes[:end]))
        draws = None if self.draws is None else self.draws[where]
        return BatchPlan(self.indices[where], self.sizes[begin:end], draws, self.seed + begin)


def batch_sizes(samples: int, batch_size: int, keep_last: bool) -> list[int]:
    """Return the batch sizes of an epoch; drop the last incomplete batch unless `keep_last`.

    A client with fewer samples than a batch trains on all of them at once.
    """
    if samples <= batch_size:
        return [samples]
    whole, rest = divmod(samples, batch_size)
    return [batch_size] * whole + ([rest] if keep_last and rest else [])


def plan_batches(
    indices: np.ndarray,
    *,
    epochs: int,
    batch_size: int,
    keep_last: bool,
    augmentation: Augmentation | None,
    key: tuple[int, int, int],
) -> BatchPlan:
    """Plan the batches of one client for one round, each epoch in a new order.

    `key` is (seed, round, client).
    """
    seed, *rest = key
    sizes = batch_sizes(len(indices), batch_size, keep_last)
    rng = generator(seed, "batches", *rest)
    order = [rng.permutation(indices)[: sum(sizes)] for _ in range(epochs)]
    draws = None
    if augmentation:
        rng = generator(seed, "augment", *rest)
        draws = augment.draw(rng, epochs * sum(sizes), augmentation)
    return BatchPlan(
        torch.from_numpy(np.concatenate(order)),
        tuple(sizes * epochs),
        draws,
        torch_seed(seed, "layers", *rest),
    )
