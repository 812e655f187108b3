"""Refuse batches of one sample that batch norm cannot train on."""

import copy
from collections.abc import Mapping
from itertools import islice

import torch
from torch import nn

from fedfm.core.errors import require
from fedfm.core.inputs import InputTree, call_network, map_inputs, to_like
from fedfm.data.batches import batch_sizes
from fedfm.rounds.federation import LocalTraining

REFUSAL = "more than 1 value per channel"
"""PyTorch's message about a batch that cannot be normalised."""


def check_single_samples(
    network: nn.Module, example: InputTree, samples: Mapping[str, int], training: LocalTraining
) -> None:
    """Refuse clients with a batch of one sample, where the network cannot train on it.

    `example` are inputs to try it on; `samples` has the number of training samples of each client,
    by the client's name in messages.
    """
    single = find_single_samples(samples, training)
    require(
        not single or can_train_on_one(network, example),
        f"{_list_names(single)}: a batch of one sample, which batch norm cannot normalise; "
        f"{_remedy(single, training)}, or use a network without batch norm",
    )


def find_single_samples(samples: Mapping[str, int], training: LocalTraining) -> dict[str, int]:
    """Return the clients with a batch of one sample, and how many samples they have."""
    size, keep_last = training.batch_size, training.keep_last
    return {name: n for name, n in samples.items() if 1 in batch_sizes(n, size, keep_last)}


def can_train_on_one(network: nn.Module, example: InputTree) -> bool:
    """Return whether a network can train on one of the inputs, despite its batch norms."""
    unchanged = {id(p): p for p in network.parameters()}
    copied = copy.deepcopy(network, unchanged).train()
    like = next(copied.parameters())
    one = to_like(map_inputs(lambda leaf: leaf[:1], example), like)
    devices = [like.device] if like.is_cuda else []
    try:
        with torch.random.fork_rng(devices=devices), torch.no_grad():
            call_network(copied, one)
    except ValueError as problem:
        if REFUSAL in str(problem):
            return False
        raise
    return True


def _remedy(single: Mapping[str, int], training: LocalTraining) -> str:
    """Describe settings that give each of these clients larger batches."""
    helps = []
    if any(n > 1 for n in single.values()):
        larger = training.batch_size == 1
        helps.append("a larger batch_size" if larger else "keep_last=false or another batch_size")
    if 1 in single.values():
        helps.append("more than one training sample for each client (fewer clients)")
    return f"use {' and '.join(helps)}"


def _list_names(names: Mapping[str, int], shown: int = 5) -> str:
    rest = len(names) - shown
    return ", ".join(islice(names, shown)) + (f" and {rest} more" if rest > 0 else "")
