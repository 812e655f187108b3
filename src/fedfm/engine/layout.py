"""How a cohort's weights lie in memory.

A convolution's weights [S, O, I, h, w] lie as [S, O, h, w, I]: next to each other are the numbers
that meet in a product of patches and weights, so that no step has to move them.
"""

import torch
from torch import Tensor

from fedfm.core import trees
from fedfm.core.trees import Tree


def memory_view(leaf: Tensor) -> Tensor:
    """A view of a cohort's leaf in the order of its memory."""
    return leaf.permute(0, 1, 3, 4, 2) if leaf.ndim == 5 else leaf


def arrange(leaf: Tensor) -> Tensor:
    """The leaf in this order, copied only if it lies otherwise."""
    return (
        memory_view(leaf).contiguous().permute(0, 1, 4, 2, 3)
        if leaf.ndim == 5
        else leaf.contiguous()
    )


def copy_arranged(leaf: Tensor) -> Tensor:
    """A copy of the leaf in this order."""
    dimensions = (*range(leaf.ndim),) if leaf.ndim != 5 else (0, 1, 3, 4, 2)
    return torch.empty_permuted(leaf.shape, dimensions, dtype=leaf.dtype, device=leaf.device).copy_(
        leaf
    )


def repeat_arranged(tree: Tree, clients: int) -> Tree:
    """Fresh copies [S, ...] of leaves [1, ...] or [S, ...], one per client."""
    return trees.tree_map(lambda leaf: copy_arranged(leaf.expand(clients, *leaf.shape[1:])), tree)


def to_low_precision(params: Tree, dtype: torch.dtype) -> Tree:
    """Copies in a lower precision of the parameters that are factors of products."""
    return {name: copy_arranged(leaf.to(dtype)) for name, leaf in params.items() if leaf.ndim > 2}
