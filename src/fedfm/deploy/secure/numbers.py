"""Encode trees of numbers as words that add up exactly, and decode their sum.

Bulk (changes of a model) goes into 32-bit fixed-point words. The step is 2^-31 of a public range,
which is rounded up to a power of two so that scaling is exact. Fine (class sums, counts, weights)
goes into 64-bit words with a step of 2^-32; integers are exact. Every client stays within its part
of the range, so no sum wraps around. The last fine word counts the clients: after unmasking it
must equal their number.
"""

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedfm.core.trees import Tree, complete, flatten, unflatten
from fedfm.deploy.errors import SecureError, SumLost, insist
from fedfm.deploy.secure.masked_integers import Words

_FINE_STEP = 2.0**-32
_CHUNK = 2**15
_REMEDY = "lower lr"
_BULK_REMEDY = "raise deployment.range or lower lr"


def word_unit(range: float) -> float:
    """Return the value of one unit of a bulk word: the error per client is at most half of it."""
    insist(math.isfinite(range) and range > 0, f"deployment.range is {range}; it must be positive")
    return math.ldexp(1.0, math.ceil(math.log2(range)) - 31)


def sizes(bulk: Tree, fine: Tree) -> tuple[int, int]:
    """Return how many words of each kind trees of these shapes take."""
    return _numel(bulk), _numel(fine) + 1


def encode(bulk: Tree, fine: Tree, clients: int, range: float) -> Words:
    """Return a client's contribution to a sum of at most `clients` clients.

    Raise a `SecureError` that names the leaf if a value is not finite or too large.
    """
    words = Words.zeros(*sizes(bulk, fine))
    unit = word_unit(range)
    _fill(words.bulk.view(np.int32), _bulk_leaves(bulk), unit, clients, _BULK_REMEDY)
    _fill(words.fine[:-1].view(np.int64), flatten(fine), _FINE_STEP, clients, _REMEDY)
    words.fine[-1] = 1
    return words


def decode(
    words: Words, bulk_like: Tree, fine_like: Tree, clients: int, range: float
) -> tuple[Tree, Tree]:
    """Return the sum of `clients` contributions as trees like the given; integers become int64."""
    fits = (len(words.bulk), len(words.fine)) == sizes(bulk_like, fine_like)
    insist(fits, "the sum and the model differ in their number of words")
    if int(words.fine[-1]) != clients:
        raise SumLost("the masks do not cancel: a client has sent other words than it should")
    bulk = _split(words.bulk.view(np.int32), bulk_like, word_unit(range))
    return bulk, _split(words.fine[:-1].view(np.int64), fine_like, _FINE_STEP)


def _numel(tree: Tree) -> int:
    return sum(leaf.numel() for leaf in flatten(tree).values())


def _bulk_leaves(bulk: Tree) -> dict[str, Tensor]:
    leaves = flatten(bulk)
    for name, leaf in leaves.items():
        insist(leaf.is_floating_point(), f"{name} holds integers; only fine words keep them exact")
    return leaves


def _fill(
    words: NDArray[Any], leaves: dict[str, Tensor], unit: float, clients: int, remedy: str
) -> None:
    limit = int(np.iinfo(words.dtype).max) // clients
    start = 0
    for name, leaf in leaves.items():
        part = words[start : (start := start + leaf.numel())]
        if leaf.is_floating_point():
            largest = _put_floats(part, _numpy(leaf), 1 / unit)
        else:
            largest = _put_integers(part, _numpy(leaf), round(1 / unit))
        if not largest <= limit:
            raise _out_of_range(name, leaf, f"{limit * unit:.4g}", clients, remedy)


def _put_floats(words: NDArray[Any], values: NDArray[Any], scale: float) -> float:
    """Write values * scale, rounded; return the largest magnitude for the caller to check."""
    buffer = np.empty(_CHUNK, values.dtype)
    most = [0.0]
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, len(values), _CHUNK):
            part = values[start : start + _CHUNK]
            scaled = np.multiply(part, scale, out=buffer[: len(part)])
            np.rint(scaled, out=scaled)
            most += [float(scaled.max()), -float(scaled.min())]
            np.copyto(words[start : start + _CHUNK], scaled, casting="unsafe")
    return float(np.max(most))


def _put_integers(words: NDArray[Any], values: NDArray[Any], scale: int) -> int:
    words[:] = values.astype(np.int64) * scale
    ends = (values.min(), values.max()) if len(values) else ()
    return max((abs(int(end)) * scale for end in ends), default=0)


def _numpy(leaf: Tensor) -> NDArray[Any]:
    leaf = leaf.detach().cpu()
    narrow = leaf.is_floating_point() and leaf.dtype != torch.float64
    return (leaf.float() if narrow else leaf).reshape(-1).numpy()


def _out_of_range(name: str, leaf: Tensor, limit: str, clients: int, remedy: str) -> SecureError:
    if leaf.is_floating_point() and not bool(torch.isfinite(leaf).all()):
        return SecureError(f"{name} is not finite: training has failed; {_REMEDY}")
    return SecureError(
        f"{name} reaches {float(leaf.abs().max()):.4g}, beyond the {limit} that each of {clients} "
        f"clients may add to a secure sum; {remedy}"
    )


def _split(words: NDArray[Any], like: Tree, unit: float) -> Tree:
    leaves: dict[str, Tensor] = {}
    start = 0
    for name, leaf in flatten(like).items():
        part = words[start : (start := start + leaf.numel())]
        leaves[name] = _leaf(part, leaf, unit).reshape(leaf.shape)
    return complete(unflatten(leaves), like)


def _leaf(words: NDArray[Any], like: Tensor, unit: float) -> Tensor:
    if not like.is_floating_point():
        return torch.from_numpy(words >> round(-math.log2(unit)))
    wide = np.float64 if like.dtype == torch.float64 else np.float32
    values = np.empty(len(words), wide)
    np.multiply(words, wide(unit), out=values, dtype=wide, casting="unsafe")
    return torch.from_numpy(values).to(like.dtype)
