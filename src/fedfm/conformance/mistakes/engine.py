"""Mistakes that no piece can make: in how the engine treats models for it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from fedfm.algorithms import FedAvg, Model, Moon
from fedfm.conformance.mistakes.planting import MISTAKES, Mistake
from fedfm.core import trees
from fedfm.core.trees import Tree, tree_map
from fedfm.engine.nets import Net

frozen, average = Net.frozen, trees.average


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


def of_the_first(tree: Tree, weights: Tensor) -> Tree:
    """The first client's buffers stand for all."""
    return tree_map(lambda leaf: leaf[0].clone(), tree)


def plainly(tree: Tree, weights: Tensor) -> Tree:
    """Every client's buffers count alike."""
    return average(tree, torch.full_like(weights, 1 / len(weights)))


MISTAKES += [
    Mistake(
        "frozen models run in training mode",
        Moon(mu=2.0),
        lambda: replaced(Net, "frozen", in_training_mode),
    ),
    Mistake(
        "BatchNorm buffers are one client's, not the average",
        FedAvg(),
        lambda: replaced(trees, "average", of_the_first),
    ),
    Mistake(
        "BatchNorm buffers are averaged plainly instead of by data share",
        FedAvg(),
        lambda: replaced(trees, "average", plainly),
    ),
]
