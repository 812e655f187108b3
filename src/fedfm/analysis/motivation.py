"""Fig. 2 of the paper: the feature spaces of clients' own models after local training."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedfm import data, models
from fedfm.algorithms import FedAvg, FedFM, Piece, compose
from fedfm.analysis.feature_space import Features, Labels, class_means, features_by, silhouette
from fedfm.core.rng import torch_seed
from fedfm.data.dataset import Dataset
from fedfm.data.partition import Partition
from fedfm.experiment import Experiment
from fedfm.protocol import Protocol
from fedfm.rounds.round import opened, run_round
from fedfm.simulation import Simulation


@dataclass(frozen=True)
class LocalSpaces:
    """The same samples through the model of each client: features [K, N, d], labels [N]."""

    title: str
    features: Features
    labels: Labels

    @property
    def gap(self) -> float:
        """How far the clients' means of a class lie apart, relative to the means of two classes.

        0 where the feature spaces agree; at 1 another client's class is as far away as another
        class; infinite where no classes are told apart.
        """
        means = np.stack([class_means(own, self.labels) for own in self.features])
        clients, classes = _mean_distance(means.swapaxes(0, 1)), _mean_distance(means)
        return clients / classes if classes else float("inf")

    @property
    def silhouette(self) -> float:
        """Of the classes, in one space with the features of all clients."""
        together = np.concatenate(self.features)
        return silhouette(together, np.tile(self.labels, len(self.features)), seed=0)


def _mean_distance(groups: NDArray[Any]) -> float:
    """Of all pairs within groups of points [G, n, d]."""
    from scipy.spatial.distance import pdist

    return float(np.mean([pdist(points) for points in groups]))


def local_models(model: nn.Module, dataset: Dataset, experiment: Experiment) -> Iterator[nn.Module]:
    """The clients' models after the local training of the last round, before they are averaged."""
    simulation = Simulation(model, dataset, experiment)
    state, federation = simulation.start, simulation.federation
    for _ in range(experiment.protocol.rounds - 1):
        state, _ = run_round(state, federation)
    last = opened(state, federation)
    trained = last.job.done_by(federation.executor).model
    tensors = {**trained.params, **trained.buffers}
    for client in range(len(last.visit.cohort)):
        own = copy.deepcopy(model)
        own.load_state_dict({name: tensor[client] for name, tensor in tensors.items()})
        yield own


def local_spaces(
    title: str, model: nn.Module, dataset: Dataset, experiment: Experiment
) -> LocalSpaces:
    """The test samples through the local models of all clients."""
    found = [features_by(own, dataset) for own in local_models(model, dataset, experiment)]
    return LocalSpaces(title, np.stack([features for features, _ in found]), found[0][1])


def two_clients_on_digits(seed: int = 0, rounds: int = 1) -> list[LocalSpaces]:
    """FedAvg against FedFM with two clients, each holding mostly five of the ten digits.

    As in the paper, both train for 10 epochs from the same initial model; FedFM's anchors are those
    of that model. An illustration, not evidence: setting and measures were chosen after looking.
    Digits are easy: some rounds later both methods' clients agree, FedAvg's even more by the gap
    between the clients' class means, and FedFM leads in the silhouette alone.
    """
    digits = data.load("digits")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed(seed, "model"))
        model = models.build("cnn", shape=digits.shape, classes=len(digits.classes), norm="batch")
    pieces: dict[str, Piece] = {"FedAvg": FedAvg(), "FedFM": FedFM(strength=5.0, start_round=0)}
    partition = Partition("niid2", dominance=9)
    protocol = Protocol(clients=2, rounds=rounds, batch_size=32)
    return [
        local_spaces(
            title, model, digits, Experiment(compose(piece), partition, protocol, seed, "stacked")
        )
        for title, piece in pieces.items()
    ]
