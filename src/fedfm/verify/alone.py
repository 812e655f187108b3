"""A piece whose client-side hooks see one client at a time, and so cannot mix clients."""

import copy
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from fedfm.core import trees
from fedfm.core.trees import Tree
from fedfm.methods import Batch, LocalRun, Model, Piece

T = TypeVar("T")


def alone(piece: Piece) -> Piece:
    """The same piece, its hooks called once per client."""
    single = copy.copy(piece)
    kind = type(f"{type(piece).__name__}Alone", (RowByRow, type(piece)), {})
    object.__setattr__(single, "__class__", kind)
    return single


def lead(*parts: Tree) -> int:
    """S, of trees whose leaves are [S, ...] or [1, ...]."""
    return max((len(leaf) for tree in parts for leaf in trees.leaves(tree)), default=1)


def each(clients: int, call: Callable[[slice], T]) -> list[T]:
    """What a hook gives for every client by itself."""
    return [call(slice(i, i + 1)) for i in range(clients)]


class RowByRow(Piece):
    """Goes in front of a piece's class: calls its hooks row by row and joins what they give."""

    def statistic(self, batch: Batch) -> Tree:
        """Row by row."""
        hook = super().statistic
        return trees.concat(each(len(batch.labels), lambda i: hook(_batch(batch, i))))

    def report(self, statistic: Tree) -> Tree:
        """Row by row."""
        hook = super().report
        return trees.concat(each(lead(statistic), lambda i: hook(trees.rows(statistic, i))))

    def prepare(self, client: Tree, received: Model, down: Tree) -> Tree:
        """Row by row; `down` is the same for all."""
        hook = super().prepare
        clients = lead(client, received._asdict())
        return trees.concat(
            each(clients, lambda i: hook(trees.rows(client, i), received.rows(i), down))
        )

    def views(self, held: Tree) -> dict[str, Model]:
        """Row by row."""
        hook = super().views
        rows = each(lead(held), lambda i: hook(trees.rows(held, i)))
        return {name: _joined([row[name] for row in rows]) for name in rows[0]}

    def loss(self, batch: Batch, held: Tree) -> Tensor | None:
        """Row by row."""
        hook = super().loss
        terms = each(len(batch.labels), lambda i: hook(_batch(batch, i), trees.rows(held, i)))
        found = [term for term in terms if term is not None]
        return torch.cat(found) if found else None

    def correct(self, grads: Tree, params: Tree, held: Tree) -> Tree:
        """Row by row."""
        hook = super().correct

        def one(i: slice) -> Tree:
            return hook(*(trees.rows(tree, i) for tree in (grads, params, held)))

        return trees.concat(each(lead(params), one))

    def finish(self, client: Tree, run: LocalRun, down: Tree) -> tuple[Tree, Tree]:
        """Row by row; `down` is the same for all."""
        hook = super().finish

        def one(i: slice) -> tuple[Tree, Tree]:
            return hook(trees.rows(client, i), run.rows(i), down)

        sent, kept = zip(*each(len(run.steps), one), strict=True)
        return trees.concat(sent), trees.concat(kept)

    def weights(self, weights: Tensor, run: LocalRun) -> Tensor:
        """Row by row."""
        hook = super().weights
        return torch.cat(each(len(weights), lambda i: hook(weights[i], run.rows(i))))


def _batch(batch: Batch, i: slice) -> Batch:
    views = {name: view[i] for name, view in batch.views.items()}
    features, logits, labels, mask, _ = batch
    return Batch(features[i], logits[i], labels[i], mask[i], views)


def _joined(models: Sequence[Model]) -> Model:
    return Model(
        trees.concat([model.params for model in models]),
        trees.concat([model.buffers for model in models]),
    )
