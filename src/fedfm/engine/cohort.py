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
from fedfm.core.trees import Tree
from fedfm.data.batches import Plan
from fedfm.engine.feed import Feed
from fedfm.engine.nets import Net


@dataclass(frozen=True)
class Sgd:
    """Local SGD: learning rate eta, heavy-ball momentum rho, weight decay."""

    lr: float
    momentum: float
    weight_decay: float


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

    def loss(self, batch: Batch) -> Tensor:
        """The local loss of each client [S]."""
        logits, labels = batch.logits.flatten(0, 1), batch.labels.flatten()
        each = F.cross_entropy(logits, labels, reduction="none").view(batch.labels.shape)
        loss = each.mean(1)
        for piece in self.pieces:
            term = piece.loss(batch, self.held[piece.name])
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
    net.module.train()
    bound: slice | None = None
    for tick in ticks(plans):
        if tick.rows != bound:
            bound = tick.rows
            part = model.rows(bound)
            leaves, aim = net.bind(part), objective.rows(bound)
            velocity: list[Tensor | None] = list(trees.leaves(trees.rows(momenta, bound)))
        batch = forward(net, feed, tick)
        loss = aim.loss(batch)
        grads = net.gradients(torch.autograd.grad(loss.sum(), leaves))
        with torch.no_grad():
            grads = aim.correct(grads, part.params)
            _update(part.params, grads, velocity, sgd)
            losses[bound] += loss.detach()
    steps = torch.tensor([len(plan.batches) for plan in plans], device=losses.device)
    return Outcome(model, losses / steps, steps)


def forward(net: Net, feed: Feed, tick: Tick) -> Batch:
    """What the network makes of a training batch."""
    inputs, labels = feed.fetch(tick.indices, tick.draws)
    try:
        features, logits = net(inputs)
    except ValueError as problem:
        raise UserError(
            f"a batch of {labels.shape[1]} cannot be trained on ({problem}); "
            "use another batch_size, keep_last=false, or a model with norm=group"
        ) from problem
    return Batch(features, logits, labels, torch.ones_like(labels, dtype=torch.bool))


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
