"""Gradient clipping, by the norm of each client's whole gradient."""

from dataclasses import dataclass

from fedfm.core.trees import Tree, client_norms, per_client, tree_map


@dataclass(frozen=True)
class Clipping:
    """Clipping of each client's gradient to a norm, as torch.nn.utils.clip_grad_norm_ does.

    Examples:
        >>> import torch
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
        scale = (self.norm / (client_norms(grads) + 1e-6)).clamp(max=1.0)
        return tree_map(lambda leaf: leaf * per_client(scale, leaf), grads)
