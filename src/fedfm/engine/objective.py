"""The local objective of a cohort."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from fedfm.core import trees
from fedfm.core.trees import Tree
from fedfm.losses import DEFAULT_LOSS, TaskLoss
from fedfm.methods.base import Batch, Model, Piece
from fedfm.methods.contract import check_alike, check_logits, check_one_each, overrides

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
        names = [piece.name for piece in self.pieces if overrides(piece, "loss")]
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
            piece_views = views.get(piece.name, {})
            with_views = batch._replace(
                views={name: features for name, (features, _) in piece_views.items()},
                view_logits={name: logits for name, (_, logits) in piece_views.items()},
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

    @property
    def perturbing(self) -> Piece | None:
        """The piece whose steps use the gradients at another point, if there is one."""
        return next((piece for piece in self.pieces if overrides(piece, "perturb")), None)

    def perturb(self, grads: Tree, params: Tree) -> Tree:
        """Return the offset [S, ...] from the parameters to that point."""
        piece = self.perturbing
        assert piece is not None
        offset = piece.perturb(grads, params, self.held[piece.name])
        return check_alike(piece, "perturb", offset, grads, "an offset")

    def blend(self, first: Tree, second: Tree) -> Tree:
        """Return the gradients [S, ...] to use, given those of both passes."""
        piece = self.perturbing
        assert piece is not None
        return piece.blend(first, second)

    @property
    def moved(self) -> Tree:
        """What the pieces change in every step, a tree per piece that does."""
        return {
            piece.name: {key: self.held[piece.name][key] for key in sorted(piece.moves)}
            for piece in self.pieces
            if piece.moves
        }

    def advance(self, grads: Tree, offset: Tree) -> None:
        """Let the pieces change these values in place."""
        for piece in self.pieces:
            if piece.moves:
                held = self.held[piece.name]
                old = {key: held[key] for key in piece.moves}
                new = piece.advance(held, grads, offset)
                new = check_alike(piece, "advance", new, old, "what it moves")
                trees.tree_map(lambda into, values: into.copy_(values), old, new)

    def replace_moved(self, moved: Tree) -> "Objective":
        """Return the objective with other values of what the pieces change in every step."""
        changed = {name: self.held[name] | leaves for name, leaves in moved.items()}
        return replace(self, held=self.held | changed)

    def correct(self, grads: Tree, params: Tree) -> Tree:
        """Return the gradients [S, ...] after every piece's correction."""
        for piece in self.pieces:
            grads = piece.correct(grads, params, self.held[piece.name])
        return grads
