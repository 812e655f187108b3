"""Small federations on which methods and executors are checked."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from fedfm import models
from fedfm.core.trees import tree_map
from fedfm.data.dataset import Dataset
from fedfm.data.split import Split
from fedfm.engine.choice import EXECUTORS
from fedfm.engine.device_data import DeviceData
from fedfm.engine.executors import Executor
from fedfm.engine.networks import copy_model, describe_task
from fedfm.methods import Piece, compose
from fedfm.models.simplex import make_head
from fedfm.models.standardised import standardise_convolutions
from fedfm.optim import Clipping, Schedule, Sgd
from fedfm.optim.schedules import CONSTANT
from fedfm.rounds.federation import Federation, LocalTraining
from fedfm.rounds.round import run_round
from fedfm.rounds.state import State, initial_state

Pieces = tuple[Piece, ...]

SHAPE = (1, 8, 8)
CLASSES = 5
"""No client has a sample of the last class."""
SIZES = (23, 10, 5, 16)
"""The samples of the clients: unequal steps, and one client with less than a batch of 8."""
TINY, FEATURES = (1, 4, 4), 8
"""The input shape of `NETWORKS`, and their number of features."""
RHO = 0.5
"""The deviation of standardised filters."""


def tiny_mlp(*norm: nn.Module) -> models.BodyAndHead:
    """Return a small perceptron; tanh keeps its features from being zero, unlike ReLU."""
    body = [nn.Flatten(), nn.Linear(prod(TINY), 12), *norm, nn.Tanh(), nn.Linear(12, FEATURES)]
    return models.BodyAndHead(nn.Sequential(*body, nn.Tanh()), nn.Linear(FEATURES, CLASSES))


def tiny_simplex() -> nn.Module:
    """Return the perceptron with a head of fixed class directions."""
    return models.BodyAndHead(tiny_mlp().body, make_head("simplex", FEATURES, CLASSES))


def tiny_cnn(*norm: nn.Module) -> nn.Module:
    """Return a small convolutional network of four channels."""
    convolution = [nn.Conv2d(1, 4, 3, padding=1), *norm, nn.ReLU(), nn.MaxPool2d(2)]
    rest = [nn.Flatten(), nn.Linear(16, FEATURES), nn.Tanh()]
    return models.BodyAndHead(nn.Sequential(*convolution, *rest), nn.Linear(FEATURES, CLASSES))


def tiny_standardised() -> nn.Module:
    """Return the convolutional network with standardised filters, one of which spans channels."""
    net = tiny_cnn(nn.GroupNorm(2, 4), nn.Conv2d(4, 4, 3, padding=1), nn.GroupNorm(2, 4))
    standardise_convolutions(net, RHO, "group")
    return net


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "tiny mlp": tiny_mlp,
    "tiny mlp with batch norm": lambda: tiny_mlp(nn.BatchNorm1d(12)),
    "tiny mlp with a simplex": tiny_simplex,
    "tiny cnn": tiny_cnn,
    "tiny cnn with batch norm": lambda: tiny_cnn(nn.BatchNorm2d(4)),
    "tiny cnn with standardised filters": tiny_standardised,
}


def make_network(
    name: str = "cnn",
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    shape: tuple[int, ...] = SHAPE,
    **options: Any,
) -> nn.Module:
    """Return a new network of `NETWORKS` or of `fedfm.models`; the seed determines its weights."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        if name in NETWORKS:
            return NETWORKS[name]().to(dtype)
        return models.build(name, shape=shape, classes=CLASSES, **options).to(dtype)


def make_images(
    seed: int = 0,
    shape: tuple[int, ...] = SHAPE,
    dtype: torch.dtype = torch.float32,
    sizes: tuple[int, ...] = SIZES,
    broken: int | None = None,
) -> Dataset:
    """Return random inputs whose mean depends on the class; only the last client has class C - 2.

    All inputs of client `broken` are NaN.
    """
    rng = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES - 2, (sum(sizes),), generator=rng)
    labels[-sizes[-1] :: 2] = CLASSES - 2
    inputs = torch.randn(sum(sizes), *shape, generator=rng, dtype=dtype)
    split = Split(inputs + labels.view(-1, *[1] * len(shape)).to(dtype) / 2, labels)
    data = Dataset("random", split, split, tuple(map(str, range(CLASSES))), keep_order=True)
    if broken is not None:
        split.inputs[split_samples(sizes)[broken]] = torch.nan  # `Dataset` would refuse it
    return data


def split_samples(sizes: tuple[int, ...] = SIZES) -> list[Tensor]:
    """Return the samples of clients that have so many each, one after another."""
    return list(torch.split(torch.arange(sum(sizes)), list(sizes)))


def make_device_data(data: Dataset, module: nn.Module) -> DeviceData:
    """Return the training data where the module is, in its precision."""
    like = next(module.parameters())
    return DeviceData.from_split(data.train, data, like.device, like.dtype)


def make_federation(
    module: nn.Module,
    data: Dataset,
    *pieces: Piece,
    executor: str | Executor = "stacked",
    lr: float = 0.05,
    momentum: float = 0.9,
    weight_decay: float = 1e-3,
    lr_gamma: float = 1.0,
    clip_norm: float = 0.0,
    clip_first: bool = False,
    epochs: int = 2,
    batch_size: int = 8,
    keep_last: bool = False,
    participation: float = 1.0,
    samples: list[Tensor] | None = None,
    seed: int = 7,
) -> Federation:
    """Return clients that train the module with the method made of the pieces."""
    if isinstance(executor, str):
        executor = EXECUTORS[executor](module, make_device_data(data, module))
    sgd = Sgd(lr, momentum, weight_decay)
    clipping = Clipping(clip_norm, clip_first) if clip_norm else None
    schedule = Schedule("exponential", gamma=lr_gamma) if lr_gamma < 1 else CONSTANT
    return Federation(
        task=describe_task(
            module, copy_model(module), len(data.classes), models.feature_dim(module, data.example)
        ),
        method=compose(pieces),
        executor=executor,
        samples=samples or split_samples(),
        training=LocalTraining(epochs, batch_size, keep_last, sgd, clipping, schedule),
        participation=participation,
        augmentation=None,
        seed=seed,
        labels=data.train.labels,
    )


def start(fed: Federation, round: int = 0) -> State:
    """Return the initial state, as the state before a round."""
    model = fed.task.model.map(lambda tree: tree_map(torch.clone, tree))
    return replace(initial_state(model, fed.method, fed.task), round=round)


def start_steady(fed: Federation) -> State:
    """Return the state before the first round in which every piece takes part."""
    return start(fed, fed.method.steady_round)


def play_rounds(state: State, fed: Federation, rounds: int) -> State:
    """Return the state after some more rounds."""
    for _ in range(rounds):
        state, _ = run_round(state, fed)
    return state


_module, _images = cache(make_network), cache(make_images)


@cache
def _executor(kind: str, module: nn.Module, data: Dataset) -> Executor:
    return EXECUTORS[kind](module, make_device_data(data, module))


@dataclass(frozen=True)
class SmallFederation:
    """A federation to check with: how clients train, who takes part; `play` runs a method in it."""

    network: str = "tiny mlp"
    dtype: torch.dtype = torch.float64
    sizes: tuple[int, ...] = (13, 6, 3, 9)
    """The client with 3 samples has less than a batch, and lacks classes that others have."""
    executor: str = "stacked"
    lr: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 1e-3
    lr_gamma: float = 1.0
    """The rate of round t is lr lr_gamma^t."""
    clip_norm: float = 0.0
    clip_first: bool = False
    epochs: int = 2
    batch_size: int = 4
    keep_last: bool = False
    participation: float = 0.75
    broken: int | None = None
    """A client whose inputs are NaN, so that its training fails."""

    @property
    def module(self) -> nn.Module:
        """The network; nothing changes its weights."""
        return _module(self.network, dtype=self.dtype)

    @property
    def data(self) -> Dataset:
        """The data of all clients, one after another."""
        return _images(shape=TINY, dtype=self.dtype, sizes=self.sizes, broken=self.broken)

    def make_federation(self, pieces: Pieces) -> Federation:
        """Return the clients, with the method made of `pieces`."""
        executor = _executor(self.executor, self.module, self.data)
        settings = vars(self) | {"executor": executor, "samples": split_samples(self.sizes)}
        for name in ("network", "dtype", "sizes", "broken"):  # they make the module and the data
            del settings[name]
        return make_federation(self.module, self.data, *pieces, **settings, seed=59)

    def play(self, pieces: Pieces, rounds: int) -> State:
        """Return the state after some rounds in which every piece takes part."""
        fed = self.make_federation(pieces)
        return play_rounds(start_steady(fed), fed, rounds)


def rounds_for(pieces: Pieces, least: int = 4) -> int:
    """Return at least so many rounds, in whole cycles of model exchanges."""
    every = compose(pieces).share_every
    return -(-least // every) * every
