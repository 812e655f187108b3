"""Local training of a cohort: the one loop over steps, whatever runs the network."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedfm.core import trees
from fedfm.core.errors import UserError, require
from fedfm.core.sgd import Sgd
from fedfm.core.trees import Tree
from fedfm.data.batches import Plan
from fedfm.engine.device_data import Feed
from fedfm.engine.layout import arranged, owned, spread
from fedfm.engine.networks import Net
from fedfm.engine.objective import Objective
from fedfm.engine.profile import phase
from fedfm.engine.schedule import Block, blocks
from fedfm.engine.update import update
from fedfm.methods.base import Batch, Model

Step = Callable[[Tensor, Tensor | None], None]
"""A step of some clients on the samples [s, B] and their augmentation's draws [s, B, 4]."""


class Outcome(NamedTuple):
    """Trained models [S, ...], the mean loss over the steps [S], the number of steps [S]."""

    model: Model
    loss: Tensor
    steps: Tensor


def gather(outcomes: Iterable[Outcome], parts: Sequence[Tensor]) -> Outcome:
    """The outcomes of cohorts, each of the clients in one of `parts`, as that of all clients.

    Each finds its place before the next is made, so that only one cohort's models exist twice.
    """
    made, whole, clients = iter(outcomes), Tree(), sum(map(len, parts))
    for some in parts:
        _put(next(made), some, whole, clients)
    return Outcome(Model(whole["params"], whole["buffers"]), whole["loss"], whole["steps"])


def _put(outcome: Outcome, some: Tensor, whole: Tree, clients: int) -> None:
    """Write a cohort's outcome to its clients' places; the first one makes room for all."""
    part = {**outcome.model._asdict(), "loss": outcome.loss, "steps": outcome.steps}
    whole |= whole or trees.tree_map(lambda leaf: leaf.new_empty(clients, *leaf.shape[1:]), part)
    places = some.to(outcome.loss.device, non_blocking=True)
    trees.tree_map(lambda into, leaf: into.index_copy_(0, places, leaf), whole, part)


class Cohort:
    """Everything that S clients train with: models, momenta, and what the pieces hold."""

    def __init__(
        self, net: Net, feed: Feed, start: Model, objective: Objective, sgd: Sgd, clients: int
    ) -> None:
        self.net, self.feed, self.sgd = net, feed, sgd
        self.model = start.map(lambda tree: spread(tree, clients))
        self.lowered = net.lowered(self.model.params)
        self.momenta = trees.tree_map(torch.zeros_like, self.model.params)
        self.objective = Objective(objective.pieces, trees.tree_map(owned, objective.held))
        self.views = {
            piece: {name: self._lowered(f"{piece}.{name}", view) for name, view in own.items()}
            for piece, own in self.objective.views().items()
        }
        self.losses = torch.zeros(clients, dtype=feed.scale.dtype, device=feed.scale.device)

    def _lowered(self, name: str, view: Model) -> Model:
        view = view.map(lambda tree: trees.tree_map(arranged, tree))
        return self.net.companion(name, view.shared).prepared(view)

    def train(self, plans: Sequence[Plan]) -> Outcome:
        """Local training by the plans, which are in packing order."""
        for block in blocks(plans):
            self._run(block, self.stepping(block))
        counted = torch.tensor([plan.steps for plan in plans])
        steps = counted.to(self.losses.device, non_blocking=True)
        self.net.count(self.model.buffers, steps)
        return Outcome(self.model, self.losses / steps, steps)

    def stepping(self, block: Block) -> Step:
        """What takes one step of a block's clients."""
        return Part(self, block.rows)

    def finish(self, part: "Part", grads: Tree) -> None:
        """The corrections of the gradients [s, ...] and the optimizer's step."""
        with phase("corrections"):
            grads = part.objective.correct(grads, part.params)
        with phase("optimizer"):
            update(part.params, grads, part.momenta, part.lowered, self.sgd)

    def _run(self, block: Block, step: Step) -> None:
        device = self.losses.device
        indices = block.indices.to(device, non_blocking=True).unbind(1)
        if block.draws is None:
            for batch in indices:
                step(batch, None)
        else:
            draws = block.draws.to(device, non_blocking=True).unbind(1)
            for batch, drawn in zip(indices, draws, strict=True):
                step(batch, drawn)


class Part:
    """The neighbouring clients that take a step together, bound to their rows of all tensors."""

    def __init__(self, cohort: Cohort, rows: slice) -> None:
        self.cohort, self.net, self.rows = cohort, cohort.net, rows
        self.losses = cohort.losses[rows]
        self.params = trees.rows(cohort.model.params, rows)
        self.lowered = trees.rows(cohort.lowered, rows)
        self.momenta = trees.rows(cohort.momenta, rows)
        self.objective = cohort.objective.rows(rows)
        buffers = trees.rows(cohort.model.buffers, rows)
        self.leaves = self.net.bind(Model(self.params | self.lowered, buffers))
        self.frozen = {
            piece: {
                name: self.net.frozen(f"{piece}.{name}", view.rows(rows))
                for name, view in views.items()
            }
            for piece, views in cohort.views.items()
        }
        self.net.module.train()

    def __call__(self, indices: Tensor, draws: Tensor | None) -> None:
        """One step on the samples [s, B]."""
        with phase("data"):
            inputs, labels = self.cohort.feed.fetch(indices, draws)
        with phase("forward and backward"):
            features, logits = self._forward(inputs)
            batch = Batch(features, logits, labels, torch.ones_like(labels, dtype=torch.bool))
            loss = self.objective.loss(batch, self._seen(inputs))
            grads = self._gradients(loss)
        with torch.no_grad():
            self.cohort.finish(self, grads)
            self.losses += loss.detach()

    def _gradients(self, loss: Tensor) -> Tree:
        found = torch.autograd.grad(loss.sum(), self.leaves, allow_unused=True)
        unused = [name for name, g in zip(self.params, found, strict=True) if g is None]
        require(
            not unused,
            f"the loss does not depend on {', '.join(unused[:3])}: set requires_grad=False there, "
            "or take it out of the network",
        )
        return self.net.gradients(found)

    def _seen(self, inputs: Tensor) -> dict[str, dict[str, Tensor]]:
        """The features [s, B, d] that the further models give, by piece and name."""
        with torch.no_grad():
            return {
                piece: {name: net(inputs)[0] for name, net in nets.items()}
                for piece, nets in self.frozen.items()
            }

    def _forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        try:
            return self.net(inputs)
        except ValueError as problem:
            said = f"a batch of {inputs.shape[1]} cannot be trained on: {problem}"
            raise UserError(said) from problem
