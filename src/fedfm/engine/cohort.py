"""Local training of a cohort: the one loop over steps, whatever runs the network."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.optim.sgd import sgd as sgd_update

from fedfm.algorithms.base import Batch, Model, Piece
from fedfm.core import trees
from fedfm.core.errors import UserError
from fedfm.core.sgd import Sgd
from fedfm.core.trees import Tree
from fedfm.data.batches import Plan
from fedfm.engine.feed import Feed
from fedfm.engine.nets import Net


@dataclass(frozen=True)
class Objective:
    """The local loss and gradient of a method: cross-entropy and what the pieces add.

    `held` has a tree per piece, leaves [S, ...] or [1, ...].
    """

    pieces: Sequence[Piece]
    held: Tree

    def rows(self, which: slice | Tensor) -> "Objective":
        """The objective of some of the clients."""
        return Objective(self.pieces, trees.rows(self.held, which))

    def views(self) -> dict[str, dict[str, Model]]:
        """The further models that each piece wants to see the batches."""
        wanted = {piece.name: piece.views(self.held[piece.name]) for piece in self.pieces}
        return {name: models for name, models in wanted.items() if models}

    def loss(self, batch: Batch, views: dict[str, dict[str, Tensor]]) -> Tensor:
        """The local loss of each client [S]; views are features [S, B, d] by piece and name."""
        logits, labels = batch.logits.flatten(0, 1), batch.labels.flatten()
        each = F.cross_entropy(logits, labels, reduction="none").view(batch.labels.shape)
        loss = each.mean(1)
        for piece in self.pieces:
            seen = batch._replace(views=views.get(piece.name, {}))
            term = piece.loss(seen, self.held[piece.name])
            loss = loss if term is None else loss + term
        return loss

    def correct(self, grads: Tree, params: Tree) -> Tree:
        """The gradients [S, ...] after every piece's correction."""
        for piece in self.pieces:
            grads = piece.correct(grads, params, self.held[piece.name])
        return grads


class Outcome(NamedTuple):
    """Trained models [S, ...], the mean loss over the steps [S], the number of steps [S]."""

    model: Model
    loss: Tensor
    steps: Tensor

    def rows(self, which: Tensor) -> "Outcome":
        """The outcome of some of the clients, or of all in another order."""
        return Outcome(self.model.rows(which), self.loss[which], self.steps[which])


def join(outcomes: Sequence[Outcome]) -> Outcome:
    """The outcomes of several cohorts as that of one."""
    return Outcome(
        Model(
            trees.concat([outcome.model.params for outcome in outcomes]),
            trees.concat([outcome.model.buffers for outcome in outcomes]),
        ),
        torch.cat([outcome.loss for outcome in outcomes]),
        torch.cat([outcome.steps for outcome in outcomes]),
    )


class Tick(NamedTuple):
    """One step of the clients `rows`, who all have a batch of the same size: indices [s, B]."""

    rows: slice
    indices: Tensor
    draws: Tensor | None


def packing_order(plans: Sequence[Plan]) -> list[int]:
    """Clients with equal batches side by side, those with more steps first."""
    return sorted(
        range(len(plans)), key=lambda i: (-len(plans[i].batches[0]), -len(plans[i].batches), i)
    )


def ticks(plans: Sequence[Plan]) -> Iterator[Tick]:
    """The steps of all clients, neighbours with batches of one size together."""
    for step in range(max(len(plan.batches) for plan in plans)):
        first = 0
        while first < len(plans):
            size = _size(plans[first], step)
            last = first + 1
            while last < len(plans) and _size(plans[last], step) == size:
                last += 1
            if size:
                yield _tick(plans, slice(first, last), step)
            first = last


def _size(plan: Plan, step: int) -> int:
    return len(plan.batches[step]) if step < len(plan.batches) else 0


def _tick(plans: Sequence[Plan], rows: slice, step: int) -> Tick:
    chosen = plans[rows]
    draws = [plan.draws[step] for plan in chosen if plan.draws is not None]
    indices = torch.stack([plan.batches[step] for plan in chosen])
    return Tick(rows, indices, torch.stack(draws) if draws else None)


def train_cohort(
    net: Net, start: Model, plans: Sequence[Plan], objective: Objective, sgd: Sgd, feed: Feed
) -> Outcome:
    """Train S clients from `start` ([S, ...] or [1, ...]) by their plans, momentum from zero."""
    clients = len(plans)
    model = start.map(lambda tree: trees.repeat(tree, clients))
    momenta = trees.tree_map(torch.zeros_like, model.params)
    losses = torch.zeros(clients, dtype=feed.scale.dtype, device=feed.scale.device)
    part: Part | None = None
    for tick in ticks(plans):
        if part is None or tick.rows != part.rows:
            part = Part(net, tick.rows, model, momenta, objective)
        losses[tick.rows] += part.step(*feed.fetch(tick.indices, tick.draws), sgd)
    steps = torch.tensor([len(plan.batches) for plan in plans], device=losses.device)
    return Outcome(model, losses / steps, steps)


class Part:
    """The neighbouring clients that take a step together, bound to their rows of all tensors."""

    def __init__(
        self, net: Net, rows: slice, model: Model, momenta: Tree, objective: Objective
    ) -> None:
        self.net, self.rows = net, rows
        self.params = trees.rows(model.params, rows)
        self.leaves = net.bind(model.rows(rows))
        self.momenta: list[Tensor | None] = list(trees.leaves(trees.rows(momenta, rows)))
        self.objective = objective.rows(rows)
        self.frozen = {
            piece: {name: net.frozen(f"{piece}.{name}", view) for name, view in views.items()}
            for piece, views in self.objective.views().items()
        }
        net.module.train()

    def step(self, inputs: Tensor, labels: Tensor, sgd: Sgd) -> Tensor:
        """One step on inputs [s, B, ...] and labels [s, B]; returns the losses [s] before it."""
        features, logits = self._forward(inputs)
        with torch.no_grad():
            views = {
                piece: {name: frozen(inputs)[0] for name, frozen in nets.items()}
                for piece, nets in self.frozen.items()
            }
        batch = Batch(features, logits, labels, torch.ones_like(labels, dtype=torch.bool))
        loss = self.objective.loss(batch, views)
        grads = self.net.gradients(torch.autograd.grad(loss.sum(), self.leaves))
        with torch.no_grad():
            _update(self.params, self.objective.correct(grads, self.params), self.momenta, sgd)
        return loss.detach()

    def _forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        try:
            return self.net(inputs)
        except ValueError as problem:
            raise UserError(
                f"a batch of {inputs.shape[1]} cannot be trained on ({problem}); "
                "use another batch_size, keep_last=false, or a model with norm=group"
            ) from problem


def _update(params: Tree, grads: Tree, momenta: list[Tensor | None], sgd: Sgd) -> None:
    """One step in place; the fused kernel takes for granted that all strides agree."""
    sgd_update(
        list(params.values()),
        [grads[name].contiguous() for name in params],
        momenta,
        weight_decay=sgd.weight_decay,
        momentum=sgd.momentum,
        lr=sgd.lr,
        dampening=0.0,
        nesterov=False,
        maximize=False,
        fused=True,
    )
