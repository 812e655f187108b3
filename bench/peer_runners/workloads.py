"""Writes a workload to a file that every runner reads: python -m ... W1 FILE ROUNDS."""

import sys
from dataclasses import asdict, dataclass, replace
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


@dataclass(frozen=True)
class Plain(Workload):
    """A workload with the network of `work.network`."""

    name: str = ""

    def module(self) -> nn.Module:
        """The network, always with the same weights."""
        torch.manual_seed(SEED)
        layers = network(self.name)
        return Network(layers[:-1], layers[-1])


def images(count: int, shape: tuple[int, int, int]) -> Dataset:
    """Random images around a centre for each of 10 classes.

    The time of a round does not depend on what they show.
    """
    rng = torch.Generator().manual_seed(SEED)
    labels = torch.randint(10, (count,), generator=rng)
    centres = torch.randn(10, *shape, generator=rng)
    noise = torch.randn(count, *shape, generator=rng)
    split = Split(centres[labels] + noise, labels)
    return Dataset("random", split, split, tuple(map(str, range(10))))


TITLES = {
    "W1": "digits 8x8, small CNN, 10 of 100 clients, 5 epochs, batch 8",
    "W2": "12,000 random images 28x28, LeNet, 10 clients, 1 epoch, batch 32",
    "W3": "the CIFAR-10 benchmark of pfl-research: 50 clients a round, 50 images each, batch 10",
    "W4": "ResNet-18, group norm, 10 of 100 clients, 100 images each, 5 epochs, batch 50",
}
TRAINING = {
    "W2": Training(clients=10, epochs=1, batch_size=32),
    "W3": Training(
        clients=200, participation=0.25, validation=0, epochs=1, batch_size=10, momentum=0.0
    ),
    "W4": Training(
        clients=100, participation=0.1, validation=0, epochs=5, batch_size=50, momentum=0.0
    ),
}


def workload(name: str) -> Workload:
    """W1 is that of stacked.py; a fifth of W2's images is held out for validation."""
    if name == "W1":
        return digits(TITLES[name])
    data = images(15_000, (1, 28, 28)) if name == "W2" else images(10_000, (3, 32, 32))
    return Plain(TITLES[name], data, TRAINING[name], {}, seconds=0, name=name)


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
    for _ in range(WARM_UP[name]):
        reference.advance()
    return {
        "workload": name,
        "inputs": reference.inputs,
        "labels": reference.labels,
        "samples": list(fed.samples),
        "cohorts": [fed.cohort(round) for round in range(WARM_UP[name] + rounds)],
        "epochs": fed.training.epochs,
        "batch_size": fed.training.batch_size,
        "sgd": asdict(fed.training.optimizer),
        "start": start,
        "reference": named(name, reference.weights()),
    }


if __name__ == "__main__":
    torch.save(contents(sys.argv[1], int(sys.argv[3])), sys.argv[2])
