"""Corrections of the gradient and the optimizer's step, compiled into one pass over memory.

Left to themselves, a piece's few operations on every parameter cost as much time on a GPU as half
a training step.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fedfm.algorithms.base import Piece
from fedfm.core import trees
from fedfm.core.sgd import Sgd
from fedfm.core.trees import Tree

Finish = Callable[[Tree, Tree, Tree, Tree, Tree], None]
"""(params, gradients of the loss, momenta, lowered, held), leaves [s, ...]; updates in place."""


def corrects(pieces: Sequence[Piece]) -> bool:
    """Whether any piece changes the gradient."""
    return any(type(piece).correct is not Piece.correct for piece in pieces)


def fused(pieces: Sequence[Piece], sgd: Sgd) -> Finish:
    """The corrections of all pieces and the step that follows, compiled for any number of clients.

    m = rho m + gradient + decay p, then p -= eta m.
    """

    def finish(params: Tree, grads: Tree, momenta: Tree, lowered: Tree, held: Tree) -> None:
        for piece in pieces:
            grads = piece.correct(grads, params, held[piece.name])
        for name, param in params.items():
            step = grads[name].to(param.dtype) + sgd.weight_decay * param
            momenta[name].copy_(sgd.momentum * momenta[name] + step)
            param.sub_(sgd.lr * momenta[name])
            if name in lowered:
                lowered[name].copy_(param)

    return _AnyNumber(torch.compile(finish))


class _AnyNumber:
    """A compiled function that is told which of its tensors' sizes will change: the clients'."""

    def __init__(self, compiled: Finish) -> None:
        self.compiled = compiled

    def __call__(self, *arguments: Tree) -> None:
        for tree in arguments:
            trees.tree_map(_with_clients, tree)
        params, grads, momenta, lowered, held = arguments
        self.compiled(params, grads, momenta, lowered, held)


def _with_clients(leaf: Tensor) -> Tensor:
    if leaf.shape[0] > 1:
        torch._dynamo.maybe_mark_dynamic(leaf, 0)
    return leaf
