"""Writes a workload to a file that every runner reads: python -m ... W1 FILE ROUNDS."""

import sys
from dataclasses import asdict, replace
from typing import Any

import torch
from bench.peer_runners.work import WARM_UP, Weights, network
from bench.stacked import SEED, Ours, PlainLoop, Workload, digits, planned
from torch import Tensor, nn

from fedfm import Training
from fedfm.data.dataset import Dataset
from fedfm.data.split import Split
from fedfm.models import BodyAndHead as Network
from fedfm.rounds.federation import Federation

IMAGES = 15_000
"""Of which a fifth is held out for validation: 12,000 are trained on."""


class LeNet(Workload):
    """W2: LeNet-5 with ReLU and max-pooling."""

    def module(self) -> nn.Module:
        """The network, always with the same weights."""
        torch.manual_seed(SEED)
        layers = network("W2")
        return Network(layers[:-1], layers[-1])


def images() -> Dataset:
    """Random images [1, 28, 28] around a centre for each of 10 classes.

    The time of a round does not depend on what they show.
    """
    rng = torch.Generator().manual_seed(SEED)
    labels = torch.randint(10, (IMAGES,), generator=rng)
    centres = torch.randn(10, 1, 28, 28, generator=rng)
    noise = torch.randn(IMAGES, 1, 28, 28, generator=rng)
    split = Split(centres[labels] + noise, labels)
    return Dataset("random", split, split, tuple(map(str, range(10))))


def workload(name: str) -> Workload:
    """W1 is that of stacked.py."""
    if name == "W1":
        return digits("W1: digits 8x8, small CNN, 10 of 100 clients, 5 epochs, batch 8")
    title = "W2: 12,000 random images 28x28, LeNet, 10 clients, 1 epoch, batch 32"
    training = Training(clients=10, epochs=1, batch_size=32)
    return LeNet(title, images(), training, {}, seconds=0)


def trimmed(fed: Federation) -> Federation:
    """Clients that hold whole batches only, since systems differ in what they do with the rest.

    As many steps as without; on W1 every client is left with one batch, the same in all systems.
    """
    size = fed.training.batch_size
    return replace(fed, samples=[indices[: len(indices) // size * size] for indices in fed.samples])


def federation(work: Workload, executor: str) -> Ours:
    """Ours, on the trimmed clients."""
    ours = Ours(work, executor, "fedavg")
    ours.fed = trimmed(ours.fed)
    return ours


def named(workload: str, weights: Weights) -> dict[str, Tensor]:
    """Our weights under the names of the plain network, which has the same layers in order."""
    names = network(workload).state_dict()
    return {name: value.clone() for name, value in zip(names, weights.values(), strict=True)}


def contents(name: str, rounds: int) -> dict[str, Any]:
    """The fields of `work.Work`."""
    work = workload(name)
    fed = federation(work, "loop").fed
    reference = PlainLoop(work, fed, planned(fed))
    start = named(name, reference.weights())
    for _ in range(WARM_UP):
        reference.advance()
    return {
        "workload": name,
        "inputs": reference.inputs,
        "labels": reference.labels,
        "samples": list(fed.samples),
        "cohorts": [fed.cohort(round) for round in range(WARM_UP + rounds)],
        "epochs": fed.training.epochs,
        "batch_size": fed.training.batch_size,
        "sgd": asdict(fed.training.optimizer),
        "start": start,
        "reference": named(name, reference.weights()),
    }


if __name__ == "__main__":
    torch.save(contents(sys.argv[1], int(sys.argv[3])), sys.argv[2])
