"""Gradient clipping, by the norm of each client's whole gradient."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedfm.core.trees import Tree, leaves, per_client, tree_map


@dataclass(frozen=True)
class Clipping:
    """Clipping of each client's gradient to a norm, as torch.nn.utils.clip_grad_norm_ does.

    Examples:
        >>> Clipping(1.0)({"weight": torch.tensor([[3.0, 4.0], [0.3, 0.4]])})["weight"]
        tensor([[0.6000, 0.8000],
                [0.3000, 0.4000]])
    """

    norm: float
    """The largest norm of a gradient."""
    first: bool = False
    """Whether gradients are clipped before the pieces correct them, instead of afterwards."""

    def __call__(self, grads: Tree) -> Tree:
        """Return the gradients [S, ...], clipped client by client."""
        norms = torch.stack([_norm(leaf) for leaf in leaves(grads)])
        total = torch.linalg.vector_norm(norms, dim=0)
        scale = (self.norm / (total + 1e-6)).clamp(max=1.0)
        return tree_map(lambda leaf: leaf * per_client(scale, leaf), grads)


def _norm(leaf: Tensor) -> Tensor:
    """Return the norm of each client's part of a leaf [S, ...]: [S], in float32 at least."""
    dtype, inner = torch.promote_types(leaf.dtype, torch.float32), (*range(1, leaf.ndim),)
    return torch.linalg.vector_norm(leaf, dim=inner, dtype=dtype) if inner else leaf.abs().to(dtype)
