"""Local training of a cohort: the one loop over steps, whatever runs the network."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedfm.core import trees
from fedfm.core.errors import UserError, require
from fedfm.core.sgd import Sgd
from fedfm.core.trees import Tree
from fedfm.data.batches import BatchPlan
from fedfm.engine.device_data import DeviceData
from fedfm.engine.layout import arrange, copy_arranged, repeat_arranged
from fedfm.engine.networks import BoundNetwork
from fedfm.engine.objective import Objective
from fedfm.engine.profile import phase
from fedfm.engine.schedule import Block, make_blocks
from fedfm.engine.update import update
from fedfm.methods.base import Batch, Model

Step = Callable[[Tensor, Tensor | None], None]
"""A step of some clients on the samples [s, B] and their augmentation's draws [s, B, 4]."""


class TrainingResult(NamedTuple):
    """Trained models [S, ...], the mean loss over the steps [S], the number of steps [S]."""

    model: Model
    loss: Tensor
    steps: Tensor


def gather_results(outcomes: Iterable[TrainingResult], parts: Sequence[Tensor]) -> TrainingResult:
    """The outcomes of cohorts, each of the clients in one of `parts`, as that of all clients.

    Each finds its place before the next is made, so that only one cohort's models exist twice.
    """
    made, whole, clients = iter(outcomes), Tree(), sum(map(len, parts))
    for some in parts:
        _put(next(made), some, whole, clients)
    return TrainingResult(Model(whole["params"], whole["buffers"]), whole["loss"], whole["steps"])


def _put(outcome: TrainingResult, some: Tensor, whole: Tree, clients: int) -> None:
    """Write a cohort's outcome to its clients' places; the first one makes room for all."""
    part = {**outcome.model._asdict(), "loss": outcome.loss, "steps": outcome.steps}
    whole |= whole or trees.tree_map(lambda leaf: leaf.new_empty(clients, *leaf.shape[1:]), part)
    places = some.to(outcome.loss.device, non_blocking=True)
    trees.tree_map(lambda into, leaf: into.index_copy_(0, places, leaf), whole, part)


class Cohort:
    """Everything that S clients train with: models, momenta, and what the pieces hold."""

    def __init__(
        self,
        net: BoundNetwork,
        data: DeviceData,
        start: Model,
        objective: Objective,
        sgd: Sgd,
        clients: int,
    ) -> None:
        self.net, self.data, self.sgd = net, data, sgd
        self.model = start.map(lambda tree: repeat_arranged(tree, clients))
        self.low_params = net.to_low_precision(self.model.params)
        self.momenta = trees.tree_map(torch.zeros_like, self.model.params)
        self.objective = Objective(objective.pieces, trees.tree_map(copy_arranged, objective.held))
        self.views = {
            piece: {name: self._prepare_view(f"{piece}.{name}", view) for name, view in own.items()}
            for piece, own in self.objective.views().items()
        }
        self.losses = torch.zeros(clients, dtype=data.scale.dtype, device=data.scale.device)

    def _prepare_view(self, name: str, view: Model) -> Model:
        view = view.map(lambda tree: trees.tree_map(arrange, tree))
        return self.net.companion(name, view.shared).prepare(view)

    def train(self, plans: Sequence[BatchPlan]) -> TrainingResult:
        """Local training by the plans, which are in packing order."""
        for block in make_blocks(plans):
            self._run(block, self.make_step(block))
        counted = torch.tensor([plan.steps for plan in plans])
        steps = counted.to(self.losses.device, non_blocking=True)
        self.net.count_batches(self.model.buffers, steps)
        return TrainingResult(self.model, self.losses / steps, steps)

    def make_step(self, block: Block) -> Step:
        """What takes one step of a block's clients."""
        return CohortPart(self, block.rows)

    def finish(self, part: "CohortPart", grads: Tree) -> None:
        """The corrections of the gradients [s, ...] and the optimizer's step."""
        with phase("corrections"):
            grads = part.objective.correct(grads, part.params)
        with phase("optimizer"):
            update(part.params, grads, part.momenta, part.low_params, self.sgd)

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


class CohortPart:
    """The neighbouring clients that take a step together, bound to their rows of all tensors."""

    def __init__(self, cohort: Cohort, rows: slice) -> None:
        self.cohort, self.net, self.rows = cohort, cohort.net, rows
        self.losses = cohort.losses[rows]
        self.params = trees.rows(cohort.model.params, rows)
        self.low_params = trees.rows(cohort.low_params, rows)
        self.momenta = trees.rows(cohort.momenta, rows)
        self.objective = cohort.objective.rows(rows)
        buffers = trees.rows(cohort.model.buffers, rows)
        self.leaves = self.net.bind(Model(self.params | self.low_params, buffers))
        self.frozen = {
            piece: {
                name: self.net.bind_frozen(f"{piece}.{name}", view.rows(rows))
                for name, view in views.items()
            }
            for piece, views in cohort.views.items()
        }
        self.net.module.train()

    def __call__(self, indices: Tensor, draws: Tensor | None) -> None:
        """One step on the samples [s, B]."""
        with phase("data"):
            inputs, labels = self.cohort.data.fetch(indices, draws)
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
        return self.net.gradient_tree(found)

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
            raise UserError(
                f"a batch of {inputs.shape[1]} cannot be trained on ({problem}); "
                "use another batch_size, keep_last=false, or a model with norm=group"
            ) from problem
