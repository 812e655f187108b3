"""The mean and the standard deviation of data that nobody holds as a whole.

Clients' moments add up, so that the sum is all a server needs. What comes out is the pooled data's
own: exact for uint8; for floats, variance = mean of squares - square of mean in double precision
loses about 1e-15 (mean / std)^2 of itself, always less than normalising in float32 loses.
"""

import math
from fractions import Fraction

import torch
from torch import Tensor

from fedfm.core.errors import require
from fedfm.core.trees import Tree
from fedfm.data.dataset import Dataset

CHUNK = 2**22
"""How many values are held in double precision at a time."""
NEGLIGIBLE = 1e-13
"""A variance below this part of the mean of squares is rounding: the channel is constant."""


def moments(data: Dataset) -> Tree:
    """The training inputs' "count" [], "sum" [C] and "square" [C] (the sum of squares) in float64.

    C are the channels, or the columns of a table; `count` is how many values each of them has.
    """
    inputs = data.train.inputs
    samples = max(1, CHUNK // inputs[0].numel())
    sums = torch.stack([_sums(part) for part in torch.split(inputs, samples)]).sum(0)
    return {"count": _count(data), "sum": sums[0], "square": sums[1]}


def _sums(inputs: Tensor) -> Tensor:
    """The sums of inputs [N, C, ...] and of their squares: [2, C]."""
    values = inputs.transpose(0, 1).flatten(1).double()
    return torch.stack([values.sum(1), values.square().sum(1)])


def _count(data: Dataset) -> Tensor:
    inputs = data.train.inputs
    return torch.tensor(inputs.numel() // inputs.shape[1], dtype=torch.float64)


def declared_moments(data: Dataset) -> Tree:
    """Moments as `moments` has them, of inputs with the mean and the deviation that `data` says."""
    mean, std = (
        torch.tensor(each, dtype=torch.float64).expand(data.shape[0])
        for each in (data.mean, data.std)
    )
    count = _count(data)
    return {"count": count, "sum": count * mean, "square": count * (mean**2 + std**2)}


def compact(moments: Tree, values: int, scale: float) -> Tree:
    """Moments in units in which none of them exceeds the number of samples, for a secure sum.

    `values` is how many values of a channel a sample has, `scale` bounds their size.
    """
    count, sums, squares = (moments[key] / values for key in ("count", "sum", "square"))
    return {"count": count, "sum": sums / scale, "square": squares / scale**2}


def expanded(moments: Tree, values: int, scale: float) -> Tree:
    """The inverse of `compact`."""
    count, sums, squares = (moments[key] * values for key in ("count", "sum", "square"))
    return {"count": count, "sum": sums * scale, "square": squares * scale**2}


def normalisation(total: Tree) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The mean [C] and the standard deviation [C] of all inputs; 1 where they are constant.

    `total` is the sum of the clients' moments.
    """
    count, sums, squares = (total[key].double() for key in ("count", "sum", "square"))
    sensible = count.ndim == 0 and sums.ndim == 1 and sums.shape == squares.shape
    require(
        sensible and all(bool(torch.isfinite(each).all()) for each in (count, sums, squares)),
        "the clients' sums of inputs are not finite or differ in shape",
    )
    require(float(count) >= 1, "the clients' sums of inputs count no values")
    means = [Fraction(value) / Fraction(float(count)) for value in sums.tolist()]
    seconds = [Fraction(value) / Fraction(float(count)) for value in squares.tolist()]
    deviations = map(_deviation, means, seconds)
    return tuple(map(float, means)), tuple(deviations)


def _deviation(mean: Fraction, square: Fraction) -> float:
    variance = square - mean**2
    return math.sqrt(variance) or 1.0 if variance > NEGLIGIBLE * square else 1.0
