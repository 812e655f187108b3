"""The local objective of a cohort."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from fedfm.core import trees
from fedfm.core.trees import Tree
from fedfm.losses import DEFAULT_LOSS, TaskLoss
from fedfm.methods.base import Batch, Model, Piece
from fedfm.methods.contract import check_logits, check_one_each

TASK = "task"
"""The name of the task's loss beside the terms of the pieces."""
TASK_HELD = "task loss"
"""What the task's loss holds, beside the pieces; names of pieces have no spaces."""

Views = Mapping[str, Mapping[str, tuple[Tensor, Tensor]]]
"""Features [S, B, d] and logits [S, B, C] of further models, by piece and name."""


@dataclass(frozen=True)
class Objective:
    """The local loss and gradient of a method: the task's loss and what the pieces add.

    `held` has a tree per piece, leaves [S, ...] or [1, ...].
    """

    pieces: Sequence[Piece]
    held: Tree
    task_loss: TaskLoss = DEFAULT_LOSS

    @property
    def terms(self) -> list[str]:
        """The names of the loss's terms, the task's first; none if it is the only one."""
        names = [piece.name for piece in self.pieces if type(piece).loss is not Piece.loss]
        return [TASK, *names] if names else []

    def rows(self, which: slice | Tensor) -> "Objective":
        """Return the objective of some of the clients."""
        return replace(self, held=trees.rows(self.held, which))

    def views(self) -> dict[str, dict[str, Model]]:
        """Return the further models of each piece, whose outputs for each batch it needs."""
        models_by_piece = {piece.name: piece.views(self.held[piece.name]) for piece in self.pieces}
        return {name: models for name, models in models_by_piece.items() if models}

    def loss(self, batch: Batch, views: Views) -> tuple[Tensor, dict[str, Tensor]]:
        """Return each client's local loss [S] and its terms [S] by name, the task's among them."""
        logits = self._adjust_logits(batch)
        loss = self.task_loss(logits, batch.labels, self.held.get(TASK_HELD, {}))
        terms = {TASK: loss}
        for piece in self.pieces:
            own = views.get(piece.name, {})
            with_views = batch._replace(
                views={name: features for name, (features, _) in own.items()},
                view_logits={name: logits for name, (_, logits) in own.items()},
            )
            term = piece.loss(with_views, self.held[piece.name])
            if term is not None:
                terms[piece.name] = check_one_each(piece, "loss", term, len(loss))
                loss = loss + terms[piece.name]
        return loss, terms

    def _adjust_logits(self, batch: Batch) -> Tensor:
        """Return the logits for the task's loss, which one piece after another may change."""
        for piece in self.pieces:
            logits = piece.adjust_logits(batch, self.held[piece.name])
            check_logits(piece, logits, batch.logits)
            batch = batch._replace(logits=logits)
        return batch.logits

    def correct(self, grads: Tree, params: Tree) -> Tree:
        """Return the gradients [S, ...] after every piece's correction."""
        for piece in self.pieces:
            grads = piece.correct(grads, params, self.held[piece.name])
        return grads
