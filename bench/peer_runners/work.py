"""The workload as every system finds it in a file; needs PyTorch only."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.machinery import ModuleSpec
from typing import Any
from unittest.mock import MagicMock

import torch
from torch import Tensor, nn

WARM_UP = 3
"""Rounds before the clock counts."""
Weights = Mapping[str, Tensor]


def network(workload: str) -> nn.Sequential:
    """The network of a workload, in plain PyTorch; the last layer is the head."""
    if workload == "W1":
        return nn.Sequential(
            *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10)),
        )
    return nn.Sequential(
        *(nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)),
    )


@dataclass(frozen=True)
class Work:
    """A federation: its data, who trains when and how, and where the plain loop arrives."""

    workload: str
    inputs: Tensor
    """Normalised images [N, C, H, W] of all clients."""
    labels: Tensor
    samples: Sequence[Tensor]
    """The indices of every client's samples: a whole number of batches."""
    cohorts: Sequence[Sequence[int]]
    """The clients of every round."""
    epochs: int
    batch_size: int
    sgd: Mapping[str, Any]
    """Learning rate, momentum and weight decay, as `torch.optim.SGD` names them."""
    start: Weights
    reference: Weights
    """The plain loop's global model after the warm-up."""

    def network(self) -> nn.Sequential:
        """The network with the initial weights."""
        module = network(self.workload)
        module.load_state_dict(self.start)
        return module

    def client(self, number: int) -> tuple[Tensor, Tensor]:
        """The inputs and labels of a client."""
        indices = self.samples[number]
        return self.inputs[indices], self.labels[indices]

    @property
    def same_batches(self) -> bool:
        """Whether all systems see the same batches, since no client has more than one."""
        return all(len(indices) == self.batch_size for indices in self.samples)


@cache
def load(path: str) -> Work:
    """The workload in a file, read once by every process."""
    return Work(**torch.load(path, weights_only=True))


@dataclass(frozen=True)
class Batches:
    """Tensors in batches, in a fresh order in every epoch: the fastest loader in plain PyTorch."""

    inputs: Tensor
    labels: Tensor
    size: int

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """One epoch."""
        order = torch.randperm(len(self.labels))
        for first in range(0, len(order), self.size):
            batch = order[first : first + self.size]
            yield self.inputs[batch], self.labels[batch]


def pretend(*modules: str) -> None:
    """Let modules that a peer imports but never uses here be importable."""
    for name in modules:
        sys.modules[name] = MagicMock(__name__=name, __spec__=ModuleSpec(name, None))
