"""Who takes a step with whom: the plans of a cohort as blocks of equal batches."""

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

    @property
    def steps(self) -> int:
        """T."""
        return self.indices.shape[1]

    @property
    def key(self) -> tuple[int, ...]:
        """Whose steps they are, and how large the batches."""
        return self.rows.start, self.rows.stop, self.indices.shape[2]


def packing_order(plans: Sequence[BatchPlan]) -> list[int]:
    """Clients with equal batches side by side, those with more steps first."""
    return sorted(range(len(plans)), key=lambda i: (-plans[i].sizes[0], -plans[i].steps, i))


def make_blocks(plans: Sequence[BatchPlan]) -> Iterator[Block]:
    """The steps of all clients, neighbours with batches of one size together."""
    done = 0
    for groups, run in groupby(range(max(p.steps for p in plans)), lambda t: _groups(plans, t)):
        steps = len(list(run))
        for rows, size in groups:
            yield _block(plans[rows], rows, done, steps, size)
        done += steps


def find_repeated_blocks(plans: Sequence[BatchPlan], times: int) -> list[Block]:
    """The first block of every key that has at least so many steps in all."""
    first: dict[tuple[int, ...], Block] = {}
    steps: Counter[tuple[int, ...]] = Counter()
    for block in make_blocks(plans):
        first.setdefault(block.key, block)
        steps[block.key] += block.steps
    return [block for key, block in first.items() if steps[key] >= times]


def _groups(plans: Sequence[BatchPlan], step: int) -> list[tuple[slice, int]]:
    """The neighbours with batches of one size in a step, those without one left out."""
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
    )
