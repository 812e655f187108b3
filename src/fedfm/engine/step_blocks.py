"""Group the steps of a cohort into blocks of clients with batches of equal size."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor

from fedfm.data.batches import BatchPlan


class Block(NamedTuple):
    """T consecutive steps of the clients `rows`, in batches of one size B.

    indices [s, T, B]; draws [s, T, B, 4] where batches are augmented.
    """

    rows: slice
    indices: Tensor
    draws: Tensor | None
    first: int = 0
    """The number of the first of these steps in the round."""

    @property
    def steps(self) -> int:
        """T."""
        return self.indices.shape[1]

    @property
    def key(self) -> tuple[int, ...]:
        """The rows and the batch size."""
        return self.rows.start, self.rows.stop, self.indices.shape[2]


def order_for_packing(plans: Sequence[BatchPlan]) -> list[int]:
    """Return the order of clients: equal batch sizes side by side, more steps first."""
    return sorted(range(len(plans)), key=lambda i: (-plans[i].sizes[0], -plans[i].steps, i))


def make_blocks(plans: Sequence[BatchPlan]) -> Iterator[Block]:
    """Iterate over the steps of all clients; neighbours with equal batch sizes are one block."""
    done = 0
    for groups, run in groupby(range(max(p.steps for p in plans)), lambda t: _groups(plans, t)):
        steps = len(list(run))
        for rows, size in groups:
            yield _block(plans[rows], rows, done, steps, size)
        done += steps


def find_repeated_blocks(plans: Sequence[BatchPlan], times: int) -> list[Block]:
    """Return the first block of every key with at least `times` steps in total."""
    first: dict[tuple[int, ...], Block] = {}
    steps: Counter[tuple[int, ...]] = Counter()
    for block in make_blocks(plans):
        first.setdefault(block.key, block)
        steps[block.key] += block.steps
    return [block for key, block in first.items() if steps[key] >= times]


def _groups(plans: Sequence[BatchPlan], step: int) -> list[tuple[slice, int]]:
    """Return the neighbours with equal batch sizes in a step, without clients that are done."""
    sizes = [plan.sizes[step] if step < plan.steps else 0 for plan in plans]
    groups, first = [], 0
    for size, run in groupby(sizes):
        last = first + len(list(run))
        if size:
            groups.append((slice(first, last), size))
        first = last
    return groups


def _block(plans: Sequence[BatchPlan], rows: slice, first: int, steps: int, size: int) -> Block:
    starts = [sum(plan.sizes[:first]) for plan in plans]
    spans = [slice(start, start + steps * size) for start in starts]
    indices = [plan.indices[span] for plan, span in zip(plans, spans, strict=True)]
    draws = [
        plan.draws[span] for plan, span in zip(plans, spans, strict=True) if plan.draws is not None
    ]
    return Block(
        rows,
        torch.stack(indices).view(-1, steps, size),
        torch.stack(draws).view(-1, steps, size, 4) if draws else None,
        first,
    )
