"""The Gaussian mechanism on answers: trees [S, ...] that are summed over clients."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fedfm.core import trees
from fedfm.core.trees import Tree
from fedfm.privacy.noise import Normals

BLOCK = 2**16
"""Coordinates to noise at a time, so that they stay in the processor's cache."""
GRID = 2.0**-10
"""Noised values are multiples of about this share of the standard deviation."""
ROUNDING = 1 - 2.0**-22
"""Clipped answers are shorter by this factor, so that rounding cannot make them too long."""


def clip(tree: Tree, norm: float) -> Tree:
    """Scale each client's answer [S, ...] down to a norm of at most `norm`.

    All leaves of a client are one vector. Integers (class counts) are part of it and become floats.
    An answer that is not finite becomes NaN throughout, so that it is noticed and left out.
    """
    floats = trees.tree_map(_as_floats, tree)
    lengths = [
        torch.linalg.vector_norm(_flat(leaf), dim=1, dtype=torch.float64)
        for leaf in trees.leaves(floats)
    ]
    if not lengths:
        return floats
    length = torch.linalg.vector_norm(torch.stack(lengths), dim=0)
    scale = torch.where(length > norm, norm / length * ROUNDING, 1.0)
    scale = torch.where(length.isfinite(), scale, torch.nan)
    return trees.tree_map(lambda leaf: leaf * trees.per_client(scale, leaf), floats)


def add_noise(tree: Tree, std: float, normals: Sequence[Normals]) -> Tree:
    """Add N(0, std^2) to every coordinate of answers [S, ...], from each client's source.

    Leaves are noised in the order of their names, so the order in the tree does not matter.
    """
    flat = trees.flatten(tree)
    noisy = {path: _add_noise_to_leaf(flat[path], std, normals) for path in sorted(flat)}
    return trees.complete(trees.unflatten(noisy), tree)


def _add_noise_to_leaf(leaf: Tensor, std: float, normals: Sequence[Normals]) -> Tensor:
    assert len(leaf) == len(normals), "each client needs its own source of noise"
    noisy = _as_floats(leaf).to("cpu", copy=True).contiguous()
    if std > 0:
        grid = 2.0 ** math.floor(math.log2(std)) * GRID
        for row, draw in zip(_flat(noisy), normals, strict=True):
            for block in row.split(BLOCK):
                exact = draw(len(block)).mul_(std).add_(block)
                block.copy_(exact.div_(grid).round_().mul_(grid))
    return noisy.to(leaf.device)


def _as_floats(leaf: Tensor) -> Tensor:
    return leaf if leaf.dtype == torch.float64 else leaf.to(torch.float32)


def _flat(leaf: Tensor) -> Tensor:
    """Return a leaf [S, ...] as [S, N]."""
    return leaf.reshape(len(leaf), math.prod(leaf.shape[1:]))
