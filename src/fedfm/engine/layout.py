"""The memory layout of a cohort's weights.

A convolution's weights [S, O, I, h, w] are stored as [S, O, h, w, I], the order in which a product
of patches and weights reads them, so no step has to move them.
"""

import torch
from torch import Tensor

from fedfm.core import trees
from fedfm.core.trees import Tree


def memory_view(leaf: Tensor) -> Tensor:
    """View a leaf in the order of its memory."""
    return leaf.permute(0, 1, 3, 4, 2) if leaf.ndim == 5 else leaf


def arrange(leaf: Tensor) -> Tensor:
    """Return the leaf in this layout; copy it only if necessary."""
    return (
        memory_view(leaf).contiguous().permute(0, 1, 4, 2, 3)
        if leaf.ndim == 5
        else leaf.contiguous()
    )


def arrange_strides(leaf: Tensor) -> Tensor:
    """Return the leaf in this layout, with strides that say so if there is one input channel.

    torch takes the layout of a convolution's output from the strides of its weights.
    """
    return copy_arranged(leaf) if leaf.ndim == 5 and leaf.stride(2) != 1 else arrange(leaf)


def copy_arranged(leaf: Tensor) -> Tensor:
    """Copy the leaf into this layout."""
    dimensions = (*range(leaf.ndim),) if leaf.ndim != 5 else (0, 1, 3, 4, 2)
    return torch.empty_permuted(leaf.shape, dimensions, dtype=leaf.dtype, device=leaf.device).copy_(
        leaf
    )


def repeat_arranged(tree: Tree, clients: int) -> Tree:
    """Copy leaves [1, ...] or [S, ...] to [S, ...], one per client, in this layout."""
    return trees.tree_map(lambda leaf: copy_arranged(leaf.expand(clients, *leaf.shape[1:])), tree)


def to_low_precision(params: Tree, dtype: torch.dtype) -> Tree:
    """Copy the parameters that are factors of products to a lower precision."""
    return {name: copy_arranged(leaf.to(dtype)) for name, leaf in params.items() if leaf.ndim > 2}
