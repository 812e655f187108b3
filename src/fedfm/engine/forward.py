"""Additive statistics over the samples of several clients, in evaluation mode."""

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fedfm.core import trees
from fedfm.core.precision import full_precision
from fedfm.core.trees import Tree
from fedfm.engine.device_data import DeviceData
from fedfm.engine.networks import BoundNetwork
from fedfm.methods.base import Batch, Model

Statistic = Callable[[Batch], Tree]
NUMBERS = {"cpu": 2**18, "cuda": 2**26}
"""About how many numbers the samples have that go through the network at once, by device."""
CLIENTS = 32
"""How many clients go through it together, or more where they have few samples."""


def sum_statistic(
    net: BoundNetwork,
    model: Model,
    samples: Sequence[Tensor],
    statistic: Statistic,
    data: DeviceData,
    at_once: int | None = None,
) -> Tree:
    """The sum of `statistic` over all of `samples` ([n_s] for each client): a tree [S, ...].

    `model` is [S, ...] for a network per client, or [1, ...] for one network that serves all.
    Of the samples so many go through it `at_once`, or as many as is `usual`.
    """
    order = torch.tensor(sorted(range(len(samples)), key=lambda i: -len(samples[i])))
    model, longest_first = net.prepare(model.rows(order)), [samples[i] for i in order]
    net.module.eval()
    sums: Tree = {}
    for rows, indices, mask in _rectangles(longest_first, at_once or default_samples_at_once(data)):
        net.bind(model.rows(rows))
        with torch.no_grad():
            batch = _batch(net, data, indices, mask)
            with full_precision():
                part = statistic(batch)
        sums = sums or trees.tree_map(lambda p: p.new_zeros(len(order), *p.shape[1:]), part)
        trees.tree_map(lambda total, p, rows=rows: total[rows].add_(p), sums, part)
    return trees.tree_map(lambda leaf: leaf[order.argsort()], sums)


def default_samples_at_once(data: DeviceData) -> int:
    """How many samples go through a network at once where memory is not short."""
    return max(1, NUMBERS[data.device.type] // math.prod(data.shape))


def _batch(net: BoundNetwork, data: DeviceData, indices: Tensor, mask: Tensor) -> Batch:
    """What the network makes of samples; of others' that fill up the rectangle, zeros."""
    inputs, labels = data.fetch(indices)
    features, logits = net(inputs)
    there = mask.to(labels.device)
    if not mask.all():
        features, logits = (x.masked_fill(~there.unsqueeze(-1), 0.0) for x in (features, logits))
    return Batch(features, logits, labels, there)


def _rectangles(samples: list[Tensor], at_once: int) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Cut the clients' samples, longest first, into rows, indices [s, b] and mask [s, b].

    A client with fewer samples than the others in a rectangle has sample 0 there, masked out.
    """
    height = max(CLIENTS, at_once // len(samples[0]))
    for top in range(0, len(samples), height):
        block = samples[top : top + height]
        width = max(1, at_once // len(block))
        for left in range(0, len(block[0]), width):
            parts = [s[left : left + width] for s in block if len(s) > left]
            lengths = torch.tensor([len(p) for p in parts]).unsqueeze(1)
            mask = torch.arange(len(parts[0])) < lengths
            yield slice(top, top + len(parts)), pad_sequence(parts, batch_first=True), mask


def count_correct(batch: Batch) -> Tree:
    """How many samples were classified right, and how many there were: [S] each."""
    right = (batch.logits.argmax(-1) == batch.labels) & batch.mask
    return {"right": right.sum(-1), "samples": batch.mask.sum(-1)}
