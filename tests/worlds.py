"""Small federations for tests, and the same seen by the textbook."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedfm import models
from fedfm.core.sgd import Sgd
from fedfm.data.dataset import Dataset, Split
from fedfm.engine.choice import EXECUTORS
from fedfm.engine.device_data import DeviceData
from fedfm.engine.networks import copy_model
from fedfm.methods import Piece, Task, compose
from fedfm.rounds.federation import Federation, LocalTraining
from fedfm.rounds.round import RoundLog, run_rounds
from fedfm.rounds.server import Diverged
from fedfm.rounds.state import State, initial_state

CLASSES = 4
SIZES = (23, 10, 5, 16)
"""Samples of the clients: unequal steps, and one client (5) smaller than a batch of 8."""


def images(seed: int = 0, shape: tuple[int, ...] = (1, 8, 8), dtype=torch.float32) -> Dataset:
    """Random inputs whose mean depends on the class; only the last client has the last class."""
    rng = torch.Generator().manual_seed(seed)
    total, last = sum(SIZES), SIZES[-1]
    labels = torch.randint(CLASSES - 1, (total,), generator=rng)
    labels[-last::2] = CLASSES - 1
    inputs = torch.randn(total, *shape, generator=rng, dtype=dtype)
    inputs = inputs + labels.view(-1, *[1] * len(shape)).to(dtype) / 2
    split = Split(inputs, labels)
    return Dataset("random", split, split, tuple(map(str, range(CLASSES))), keep_order=True)


def samples(sizes: tuple[int, ...] = SIZES) -> list[Tensor]:
    return list(torch.arange(sum(sizes)).split(list(sizes)))


def network(name: str = "cnn", seed: int = 0, dtype=torch.float32, **options) -> nn.Module:
    torch.manual_seed(seed)
    shape = options.pop("shape", (1, 8, 8))
    return models.build(name, shape=shape, classes=CLASSES, **options).to(dtype)


def device_data(data: Dataset, module: nn.Module) -> DeviceData:
    like = next(module.parameters())
    return DeviceData.from_split(data.train, data, like.device, like.dtype)


def federation(
    module: nn.Module,
    data: Dataset,
    *pieces: Piece,
    executor: str = "stacked",
    epochs: int = 2,
    momentum: float = 0.9,
    weight_decay: float = 1e-3,
    keep_last: bool = False,
    participation: float = 1.0,
    batch_size: int = 8,
    clients: list[Tensor] | None = None,
) -> Federation:
    return Federation(
        task=Task(copy_model(module), CLASSES, models.feature_dim(module, data.shape)),
        method=compose(pieces),
        executor=EXECUTORS[executor](module, device_data(data, module)),
        samples=clients or samples(),
        training=LocalTraining(epochs, batch_size, keep_last, Sgd(0.05, momentum, weight_decay)),
        participation=participation,
        augmented=False,
        seed=7,
    )


def start(module: nn.Module, fed: Federation) -> State:
    return initial_state(copy_model(module), fed.method, fed.task)


def close(ours: dict[str, Tensor], theirs: nn.Module, tolerance: float) -> None:
    expected = theirs.state_dict()
    assert ours.keys() == expected.keys()
    for name, value in ours.items():
        close = torch.allclose(value, expected[name], rtol=tolerance, atol=tolerance)
        assert close, f"{name} is off by {(value - expected[name]).abs().max()}"


def rounds_together(
    states: Sequence[State], feds: Sequence[Federation]
) -> list[tuple[State, RoundLog]]:
    """`run_rounds` where nobody diverges."""
    found = run_rounds(states, feds)
    ended = [each for each in found if not isinstance(each, Diverged)]
    assert len(ended) == len(found)
    return ended
