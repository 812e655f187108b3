"""Mistakes that no piece can make: in how the engine treats models for it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from fedfm.core.trees import Tree
from fedfm.engine.networks import Net
from fedfm.methods import FedAvg, Model, Moon
from fedfm.rounds import clients
from fedfm.verify.mistakes.planting import MISTAKES, Mistake

frozen, summed_buffers = Net.frozen, clients.summed_buffers


@contextmanager
def replaced(owner: Any, name: str, wrong: Any) -> Iterator[None]:
    """An attribute is another one for a while."""
    right = getattr(owner, name)
    setattr(owner, name, wrong)
    try:
        yield
    finally:
        setattr(owner, name, right)


def in_training_mode(self: Net, name: str, model: Model) -> Net:
    """The frozen model moves its BatchNorm statistics."""
    net = frozen(self, name, model)
    net.module.train()
    return net


def of_the_first(buffers: Tree, base: Tree, samples: Tensor) -> Tree:
    """The first client's buffers stand for all."""
    first = torch.zeros_like(samples)
    first[0] = samples.sum()
    return summed_buffers(buffers, base, first)


def plainly(buffers: Tree, base: Tree, samples: Tensor) -> Tree:
    """Every client's buffers count alike."""
    return summed_buffers(buffers, base, samples.mean().expand_as(samples))


MISTAKES += [
    Mistake(
        "frozen models run in training mode",
        Moon(mu=2.0),
        lambda: replaced(Net, "frozen", in_training_mode),
    ),
    Mistake(
        "BatchNorm buffers are one client's, not the average",
        FedAvg(),
        lambda: replaced(clients, "summed_buffers", of_the_first),
    ),
    Mistake(
        "BatchNorm buffers are averaged plainly instead of by data share",
        FedAvg(),
        lambda: replaced(clients, "summed_buffers", plainly),
    ),
]
