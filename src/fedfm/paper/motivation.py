"""Fig. 2 of the paper: the feature spaces of clients' own models after local training."""

import copy
from collections.abc import Iterator

import numpy as np
import torch
from torch import nn

from fedfm import data, models
from fedfm.config import Config, make_config
from fedfm.config.training import Training
from fedfm.core.rng import torch_seed
from fedfm.data.dataset import Dataset
from fedfm.data.partition import Partition
from fedfm.methods import FedAvg, FedFM, Piece
from fedfm.metrics.feature_space import LocalSpaces, compute_features
from fedfm.rounds.round import open_round, run_round
from fedfm.run.simulation import Simulation


def train_local_models(model: nn.Module, dataset: Dataset, config: Config) -> Iterator[nn.Module]:
    """Yield the clients' models after the last round's local training, before averaging."""
    simulation = Simulation(model, dataset, config)
    state, federation = simulation.start, simulation.federation
    for _ in range(config.training.rounds - 1):
        state, _ = run_round(state, federation)
    last = open_round(state, federation)
    trained = federation.executor.train(last.job).model
    tensors = {**trained.params, **trained.buffers}
    for client in range(len(last.group.cohort)):
        local = copy.deepcopy(model)
        local.load_state_dict({name: tensor[client] for name, tensor in tensors.items()})
        yield local


def compute_local_spaces(
    title: str, model: nn.Module, dataset: Dataset, config: Config
) -> LocalSpaces:
    """Return the test features by the local models of all clients."""
    trained = train_local_models(model, dataset, config)
    features, labels = zip(*(compute_features(local, dataset) for local in trained), strict=True)
    return LocalSpaces(title, np.stack(features), labels[0])


def compare_two_clients_on_digits(seed: int = 0, rounds: int = 1) -> list[LocalSpaces]:
    """Compare FedAvg and FedFM with two clients, each with mostly five digits.

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
    training = Training(clients=2, rounds=rounds, batch_size=32)
    settings = {"partition": partition, "training": training, "executor": "stacked"}
    return [
        compute_local_spaces(title, model, digits, make_config(piece, seed=seed, **settings))
        for title, piece in pieces.items()
    ]
