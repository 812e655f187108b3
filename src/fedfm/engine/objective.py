"""The local objective of a cohort."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from fedfm.core import trees
from fedfm.core.trees import Tree
from fedfm.methods.base import Batch, Model, Piece
from fedfm.methods.contract import check_one_each


@dataclass(frozen=True)
class Objective:
    """The local loss and gradient of a method: cross-entropy and what the pieces add.

    `held` has a tree per piece, leaves [S, ...] or [1, ...].
    """

    pieces: Sequence[Piece]
    held: Tree

    def rows(self, which: slice | Tensor) -> "Objective":
        """Return the objective of some of the clients."""
        return Objective(self.pieces, trees.rows(self.held, which))

    def views(self) -> dict[str, dict[str, Model]]:
        """Return the further models of each piece, whose features of each batch it needs."""
        models_by_piece = {piece.name: piece.views(self.held[piece.name]) for piece in self.pieces}
        return {name: models for name, models in models_by_piece.items() if models}

    def loss(self, batch: Batch, views: dict[str, dict[str, Tensor]]) -> Tensor:
        """Return each client's local loss [S]; views are features [S, B, d] by piece and name."""
        logits, labels = batch.logits.flatten(0, 1), batch.labels.flatten()
        losses = F.cross_entropy(logits, labels, reduction="none").view(batch.labels.shape)
        loss = losses.mean(1)
        for piece in self.pieces:
            with_views = batch._replace(views=views.get(piece.name, {}))
            term = piece.loss(with_views, self.held[piece.name])
            if term is not None:
                loss = loss + check_one_each(piece, "loss", term, len(loss))
        return loss

    def correct(self, grads: Tree, params: Tree) -> Tree:
        """Return the gradients [S, ...] after every piece's correction."""
        for piece in self.pieces:
            grads = piece.correct(grads, params, self.held[piece.name])
        return grads
