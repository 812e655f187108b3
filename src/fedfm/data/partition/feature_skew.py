"""Feature skew: the clients hold alike samples, seen through unlike instruments."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fedfm.core.errors import require
from fedfm.core.inputs import describe_inputs, is_quantity
from fedfm.core.rng import generator
from fedfm.data import augment
from fedfm.data.dataset import Dataset
from fedfm.data.partition.count_tables import Ints
from fedfm.data.partition.settings import Partition
from fedfm.data.split import Split

LARGEST_ANGLE = math.radians(45)
"""The rotation of the last client at severity 1."""


def skew_features(
    data: Dataset, shards: Sequence[Ints], partition: Partition, seed: int
) -> Dataset:
    """Change the inputs of client k, more for larger k; deal out and change test samples alike.

    A test sample belongs to a client then, as it does in the field.
    """
    _check(data, partition)
    rng = generator(seed, "feature skew")
    tests = np.array_split(rng.permutation(len(data.test)), len(shards))
    train, test = (
        _change(data, split, parts, partition, rng)
        for split, parts in ((data.train, shards), (data.test, tests))
    )
    return replace(data, train=train, test=test, clients=tuple(map(str, range(len(shards)))))


def _check(data: Dataset, partition: Partition) -> None:
    inputs = data.train.inputs
    require(
        isinstance(inputs, Tensor) and is_quantity(inputs),
        f"feature skew changes images and numbers, not inputs of {describe_inputs(inputs)}",
    )
    require(
        partition.transform != "rotation" or len(data.shape) == 3,
        f"inputs of shape {data.shape} are no images, which rotation needs: use transform noise or "
        "brightness",
    )


def _change(
    data: Dataset,
    split: Split,
    parts: Sequence[Ints],
    partition: Partition,
    rng: np.random.Generator,
) -> Split:
    """Return the samples of all `parts`, changed for their client."""
    inputs, owners = split.inputs.clone(), torch.zeros(len(split), dtype=torch.int64)
    low, high = float(data.train.inputs.min()), float(data.train.inputs.max())
    for client, part in enumerate(map(torch.from_numpy, parts)):
        level = partition.severity * client / max(len(parts) - 1, 1)
        changed = TRANSFORMS[partition.transform](data, inputs[part], level, rng)
        if inputs.dtype == torch.uint8:
            changed = changed.round().clamp(low, high)
        inputs[part] = changed.to(inputs.dtype)
        owners[part] = client
    return replace(split, inputs=inputs, clients=owners)


def _rotate(data: Dataset, inputs: Tensor, level: float, rng: np.random.Generator) -> Tensor:
    draws = torch.tensor([0.0, 0.0, 0.0, level * LARGEST_ANGLE]).expand(len(inputs), 4)
    return augment.apply(inputs, draws)


def _add_noise(data: Dataset, inputs: Tensor, level: float, rng: np.random.Generator) -> Tensor:
    noise = torch.from_numpy(rng.standard_normal(inputs.shape, np.float32))
    return inputs + level * noise * _scale(data)


def _brighten(data: Dataset, inputs: Tensor, level: float, rng: np.random.Generator) -> Tensor:
    return inputs + level * _scale(data)


def _scale(data: Dataset) -> Tensor:
    """Return the standard deviation of each channel, for inputs [N, C, ...]."""
    return torch.tensor(data.std).reshape(-1, *(1,) * (len(data.shape) - 1))


TRANSFORMS: dict[str, Callable[[Dataset, Tensor, float, np.random.Generator], Tensor]] = {
    "rotation": _rotate,
    "noise": _add_noise,
    "brightness": _brighten,
}
