"""Small federations on which methods are checked, and the same seen by the textbook."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedfm import models
from fedfm.core.rng import generator
from fedfm.core.sgd import Sgd
from fedfm.data.dataset import Dataset, Split
from fedfm.engine.choice import EXECUTORS
from fedfm.engine.device_data import DeviceData
from fedfm.engine.executors import Executor
from fedfm.engine.networks import copy_model
from fedfm.methods import Piece, Task, compose
from fedfm.rounds.federation import Federation, LocalTraining
from fedfm.rounds.round import run_round
from fedfm.rounds.state import State, initial_state
from fedfm.verify import textbook

Pieces = tuple[Piece, ...]

SHAPE = (1, 4, 4)
CLASSES = 5
"""Of the last class there is no sample anywhere."""
SIZES = (13, 6, 3, 9)
"""Samples of the clients: unequal steps, and one client smaller than a batch of 4."""
FEATURES = 8


def mlp() -> nn.Module:
    """A small perceptron. Features end in tanh: ReLU can leave none, which have no direction."""
    body = [nn.Flatten(), nn.Linear(prod(SHAPE), 12), nn.Tanh(), nn.Linear(12, FEATURES), nn.Tanh()]
    return models.BodyAndHead(nn.Sequential(*body), nn.Linear(FEATURES, CLASSES))


def cnn(*norm: nn.Module) -> nn.Module:
    """A small convolutional network of four channels."""
    convolution = [nn.Conv2d(1, 4, 3, padding=1), *norm, nn.ReLU(), nn.MaxPool2d(2)]
    rest = [nn.Flatten(), nn.Linear(16, FEATURES), nn.Tanh()]
    return models.BodyAndHead(nn.Sequential(*convolution, *rest), nn.Linear(FEATURES, CLASSES))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "mlp": mlp,
    "cnn": cnn,
    "cnn with batch norm": lambda: cnn(nn.BatchNorm2d(4)),
}


def shards(sizes: tuple[int, ...]) -> list[Tensor]:
    """The samples of clients that have so many each, one after another."""
    ends = list(accumulate(sizes))
    return [torch.arange(end - size, end) for size, end in zip(sizes, ends, strict=True)]


@cache
def images(sizes: tuple[int, ...], dtype: torch.dtype, broken: int | None = None) -> Dataset:
    """Random images whose mean depends on the class; only the last client has class C - 2."""
    rng = torch.Generator().manual_seed(0)
    labels = torch.randint(CLASSES - 2, (sum(sizes),), generator=rng)
    labels[-sizes[-1] :: 2] = CLASSES - 2
    inputs = torch.randn(sum(sizes), *SHAPE, generator=rng, dtype=dtype)
    split = Split(inputs + labels.view(-1, 1, 1, 1).to(dtype) / 2, labels)
    data = Dataset("random", split, split, tuple(map(str, range(CLASSES))), keep_order=True)
    if broken is not None:
        split.inputs[sum(sizes[:broken])] = torch.nan  # `Dataset` would refuse it
    return data


@cache
def network(name: str, dtype: torch.dtype) -> nn.Module:
    """The network of that name in `NETWORKS`, always with the same weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return NETWORKS[name]().to(dtype)


@dataclass(frozen=True)
class World:
    """How clients train and who takes part; `play` runs a method in it."""

    network: str = "mlp"
    dtype: torch.dtype = torch.float64
    sizes: tuple[int, ...] = SIZES
    executor: str = "stacked"
    lr: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 1e-3
    epochs: int = 2
    batch_size: int = 4
    participation: float = 0.75
    broken: int | None = None
    """A client of which one input is NaN, so that its training fails."""

    @property
    def module(self) -> nn.Module:
        """The network; nothing changes its weights."""
        return network(self.network, self.dtype)

    @property
    def data(self) -> Dataset:
        """The data of all clients, one after another."""
        return images(self.sizes, self.dtype, self.broken)

    def federation(self, pieces: Pieces) -> Federation:
        """The clients, running the method made of `pieces`."""
        sgd = Sgd(self.lr, self.momentum, self.weight_decay)
        return Federation(
            task=Task(copy_model(self.module), CLASSES, FEATURES),
            method=compose(pieces),
            executor=_executor(self.executor, self.network, self.data),
            samples=shards(self.sizes),
            training=LocalTraining(self.epochs, self.batch_size, False, sgd),
            participation=self.participation,
            augmented=False,
            seed=59,
        )

    def start(self, fed: Federation) -> State:
        """The state before the first round in which every piece is at work."""
        state = initial_state(copy_model(self.module), fed.method, fed.task)
        return replace(state, round=fed.method.steady_round)

    def play(self, pieces: Pieces, rounds: int) -> State:
        """The state after some rounds."""
        fed = self.federation(pieces)
        return played(self.start(fed), fed, rounds)


@cache
def _executor(kind: str, name: str, data: Dataset) -> Executor:
    dtype = data.train.inputs.dtype
    feed = DeviceData.from_split(data.train, data, torch.device("cpu"), dtype)
    return EXECUTORS[kind](network(name, dtype), feed)


def played(state: State, fed: Federation, rounds: int) -> State:
    """The state after some more rounds."""
    for _ in range(rounds):
        state, _ = run_round(state, fed)
    return state


class Schedule(NamedTuple):
    """When a method is compared with the textbook: from round `begin` on, for `rounds` rounds.

    Read from the settings alone, since the pieces' own `first_round` may be wrong.
    """

    begin: int
    wait: int
    """The rounds from there to T_s, two where there are so many."""
    every: int
    """Models travel every so many rounds."""
    rounds: int


def schedule(pieces: Pieces, least: int = 4) -> Schedule:
    """Rounds around T_s, at least so many of them after it, in whole cycles of model exchanges."""
    start = max(int(vars(piece).get("start_round", 0)) for piece in pieces)
    every = max(int(vars(piece).get("models_every", 1)) for piece in pieces)
    begin = max(0, start - 2) // every * every
    return Schedule(begin, start - begin, every, -(-(start - begin + least) // every) * every)


def rounds_for(pieces: Pieces, least: int = 4) -> int:
    """At least so many rounds, up to one in which models are shared."""
    every = compose(pieces).share_every
    return -(-least // every) * every


def cohort_of(fed: Federation, data: Dataset, round: int) -> list[textbook.Client]:
    """The cohort of a round in the textbook's form, with batches that the textbook makes."""
    return [_client(fed, data, round, k) for k in fed.cohort(round)]


def _client(fed: Federation, data: Dataset, round: int, client: int) -> textbook.Client:
    def pair(samples: Tensor) -> tuple[Tensor, Tensor]:
        chosen = data.train.subset(samples)
        return chosen.inputs, chosen.labels

    own, training = fed.samples[client], fed.training
    rng = generator(fed.seed, "batches", round, client)
    how = training.epochs, training.batch_size, training.keep_last
    batches = textbook.local_batches(own.tolist(), lambda each: rng.permutation([*each]), *how)
    return {
        "id": client,
        "batches": [pair(torch.tensor(batch)) for batch in batches],
        "samples": len(own),
        "data": pair(own),
    }
