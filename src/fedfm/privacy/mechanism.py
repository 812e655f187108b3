"""The Gaussian mechanism on answers: trees [S, ...] that add up over clients."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fedfm.core import trees
from fedfm.core.trees import Tree
from fedfm.privacy.noise import Normals

BLOCK = 2**16
"""Coordinates at a time, so that they stay in the processor's cache."""
GRID = 2.0**-10
"""Noised values are multiples of about so many standard deviations."""
ROUNDING = 1 - 2.0**-22
"""Clipped answers are shorter by this, so that float32's rounding cannot make them too long."""


def clip(tree: Tree, norm: float) -> Tree:
    """Answers [S, ...], each client's scaled down to a length of at most `norm`.

    All leaves of a client are one vector. Integers (class counts) are part of it and come back as
    floats. An answer that is not finite comes back as NaN throughout, to be noticed and left out.
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
    """Answers [S, ...] with N(0, std^2) added to every coordinate, from each client's own source.

    Leaves take their turn by name, so the noise does not depend on their order in the tree.
    """
    flat = trees.flatten(tree)
    noisy = {path: _noised(flat[path], std, normals) for path in sorted(flat)}
    return trees.complete(trees.unflatten(noisy), tree)


def _noised(leaf: Tensor, std: float, normals: Sequence[Normals]) -> Tensor:
    assert len(leaf) == len(normals), "each client needs a source of noise of its own"
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
    """A leaf [S, ...] as [S, N]."""
    return leaf.reshape(len(leaf), math.prod(leaf.shape[1:]))
