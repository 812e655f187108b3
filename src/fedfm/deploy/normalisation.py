"""Compute the mean and standard deviation of all clients' data from sums over clients.

Clients' moments add up, so the server needs only their sum. The result is that of the pooled data:
exact for uint8. For floats the variance (mean of squares - square of mean, in double precision) has
a relative error of about 1e-15 (mean / std)^2, always less than that of normalising in float32.
"""

import math
from fractions import Fraction

import torch
from torch import Tensor

from fedfm.core.errors import require
from fedfm.core.trees import Tree
from fedfm.data.dataset import Dataset

CHUNK = 2**22
"""The number of values that are held in double precision at a time."""
NEGLIGIBLE = 1e-13
"""A variance below this share of the mean of squares is rounding: the channel is constant."""


def compute_moments(data: Dataset) -> Tree:
    """Return "count" [], "sum" [C] and "square" [C] (sum of squares) of the training inputs.

    C is the number of channels, or of columns of a table; `count` is the number of values in each.
    All are float64.
    """
    inputs = data.train.inputs
    samples = max(1, CHUNK // inputs[0].numel())
    sums = torch.stack([_sum(part) for part in torch.split(inputs, samples)]).sum(0)
    return {"count": _count(data), "sum": sums[0], "square": sums[1]}


def _sum(inputs: Tensor) -> Tensor:
    """Return the sums of inputs [N, C, ...] and of their squares: [2, C]."""
    values = inputs.transpose(0, 1).flatten(1).double()
    return torch.stack([values.sum(1), values.square().sum(1)])


def _count(data: Dataset) -> Tensor:
    inputs = data.train.inputs
    return torch.tensor(inputs.numel() // inputs.shape[1], dtype=torch.float64)


def compute_declared_moments(data: Dataset) -> Tree:
    """Return the moments of as many inputs with the mean and deviation that `data` declares."""
    mean, std = (
        torch.tensor(each, dtype=torch.float64).expand(data.shape[0])
        for each in (data.mean, data.std)
    )
    count = _count(data)
    return {"count": count, "sum": count * mean, "square": count * (mean**2 + std**2)}


def compact(moments: Tree, values: int, scale: float) -> Tree:
    """Return moments in units in which none exceeds the number of samples, for a secure sum.

    `values` is the number of values per channel of a sample; `scale` bounds their size.
    """
    count, sums, squares = (moments[key] / values for key in ("count", "sum", "square"))
    return {"count": count, "sum": sums / scale, "square": squares / scale**2}


def expand(moments: Tree, values: int, scale: float) -> Tree:
    """Undo `compact`."""
    count, sums, squares = (moments[key] * values for key in ("count", "sum", "square"))
    return {"count": count, "sum": sums * scale, "square": squares * scale**2}


def compute_normalisation(total: Tree) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the mean [C] and standard deviation [C] of all inputs, given the sum of moments.

    The deviation of a constant channel is 1.
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
