"""Mistakes that no piece can make: in how the engine treats models for it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from fedfm.core.trees import Tree
from fedfm.engine.networks import BoundNetwork
from fedfm.methods import FedAvg, Model, Moon
from fedfm.rounds import clients
from fedfm.verify.mistakes.planting import MISTAKES, Mistake

bind_frozen, sum_buffers = BoundNetwork.bind_frozen, clients.sum_buffers


@contextmanager
def replaced(owner: Any, name: str, wrong: Any) -> Iterator[None]:
    """An attribute is another one for a while."""
    right = getattr(owner, name)
    setattr(owner, name, wrong)
    try:
        yield
    finally:
        setattr(owner, name, right)


def in_training_mode(self: BoundNetwork, name: str, model: Model) -> BoundNetwork:
    """The frozen model moves its BatchNorm statistics."""
    net = bind_frozen(self, name, model)
    net.module.train()
    return net


def of_the_first(buffers: Tree, base: Tree, samples: Tensor) -> Tree:
    """The first client's buffers stand for all."""
    first = torch.zeros_like(samples)
    first[0] = samples.sum()
    return sum_buffers(buffers, base, first)


def plainly(buffers: Tree, base: Tree, samples: Tensor) -> Tree:
    """Every client's buffers count alike."""
    return sum_buffers(buffers, base, samples.mean().expand_as(samples))


MISTAKES += [
    Mistake(
        "frozen models run in training mode",
        Moon(mu=2.0),
        lambda: replaced(BoundNetwork, "bind_frozen", in_training_mode),
    ),
    Mistake(
        "BatchNorm buffers are one client's, not the average",
        FedAvg(),
        lambda: replaced(clients, "sum_buffers", of_the_first),
    ),
    Mistake(
        "BatchNorm buffers are averaged plainly instead of by data share",
        FedAvg(),
        lambda: replaced(clients, "sum_buffers", plainly),
    ),
]
