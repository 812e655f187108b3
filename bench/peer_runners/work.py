"""The workload as every system finds it in a file; needs PyTorch only."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.machinery import ModuleSpec
from itertools import pairwise
from typing import Any
from unittest.mock import MagicMock

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WARM_UP = {"W1": 3, "W2": 3, "W3": 2, "W4": 1}
"""The workloads, and the rounds of each before the clock counts."""
Weights = Mapping[str, Tensor]


class Block(nn.Module):
    """A residual block of ResNet-18 with group norm."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, width, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList(nn.GroupNorm(2, width) for _ in range(2))
        self.shortcut = nn.Sequential()
        if stride > 1:
            layers = nn.Conv2d(inputs, width, 1, stride, bias=False), nn.GroupNorm(2, width)
            self.shortcut = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """Return activations [B, width, H, W]."""
        y = F.relu(self.norms[0](self.first(x)))
        return F.relu(self.norms[1](self.second(y)) + self.shortcut(x))


def resnet() -> nn.Sequential:
    """ResNet-18 with group norm and ImageNet's stem, for ten classes."""
    widths = [64, 64, 128, 256, 512]
    stages = [
        block
        for width, following in pairwise(widths)
        for block in (
            Block(width, following, 1 if width == following else 2),
            Block(following, following, 1),
        )
    ]
    return nn.Sequential(
        *(nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.GroupNorm(2, 64), nn.ReLU()),
        *(nn.MaxPool2d(3, 2, 1), *stages),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10)),
    )


def network(workload: str) -> nn.Sequential:
    """The network of a workload, in plain PyTorch; the last layer is the head."""
    if workload == "W1":
        return nn.Sequential(
            *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10)),
        )
    if workload == "W3":
        return nn.Sequential(
            *(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Dropout(0.25), nn.Flatten(), nn.Linear(12544, 128), nn.ReLU()),
            *(nn.Dropout(0.5), nn.Linear(128, 10)),
        )
    if workload == "W4":
        return resnet()
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

    @property
    def warm_up(self) -> int:
        """Rounds before the clock counts."""
        return WARM_UP[self.workload]

    @property
    def samples_a_round(self) -> int:
        """How many samples all clients of a round train on, counted in every epoch."""
        return self.epochs * sum(len(self.samples[client]) for client in self.cohorts[0])

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
