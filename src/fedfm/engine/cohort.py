"""Local training of a cohort: the one loop over steps, whatever runs the network."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from fedfm.core import trees
from fedfm.core.errors import UserError, require
from fedfm.core.inputs import InputTree
from fedfm.core.trees import Tree
from fedfm.data.batches import BatchPlan
from fedfm.engine.device_data import DeviceData
from fedfm.engine.layout import arrange, copy_arranged, repeat_arranged
from fedfm.engine.networks import BoundNetwork
from fedfm.engine.objective import Objective, Views
from fedfm.engine.profile import phase
from fedfm.engine.randomness import KeyedDraws
from fedfm.engine.second_pass import SecondModel, SecondPass
from fedfm.engine.step_blocks import Block, make_blocks
from fedfm.engine.update import Clock, update
from fedfm.methods.base import Batch, Model
from fedfm.optim import Clipping, Optimizer

Step = Callable[[Tensor, Tensor | None], None]
"""Takes one step of some clients on the samples [s, B], with augmentation draws [s, B, 4]."""
Outputs = tuple[Tensor, Tensor]
"""Features [s, B, d] and logits [s, B, C]."""


@dataclass(frozen=True)
class TrainingJob:
    """The local training of a cohort of S clients; all leaves are [S, ...] or [1, ...]."""

    start: Model
    plans: Sequence[BatchPlan]
    objective: Objective
    optimizer: Optimizer
    clipping: Clipping | None = None
    factors: tuple[float, ...] = ()
    """What the learning rate is multiplied with in each step; none if it never changes."""
    trained: frozenset[str] | None = None
    """The names of the parameters that take steps; None: all."""

    def rows(self, which: slice | Tensor) -> "TrainingJob":
        """Return the job of some of the clients."""
        indices = range(len(self.plans))[which] if isinstance(which, slice) else which.tolist()
        plans = [self.plans[i] for i in indices]
        objective = self.objective.rows(which)
        return replace(self, start=self.start.rows(which), plans=plans, objective=objective)


class TrainingResult(NamedTuple):
    """Trained models [S, ...], the mean loss over the steps [S], the number of steps [S].

    `terms` are the mean terms [S] of the loss by name, if there are any besides the task's.
    """

    model: Model
    loss: Tensor
    steps: Tensor
    terms: Tree
    moved: Tree
    """The last values [S, ...] of what the pieces change in every step, a tree per piece."""


def gather_results(results: Iterable[TrainingResult], parts: Sequence[Tensor]) -> TrainingResult:
    """Return the result of all clients, given those of cohorts; `parts` has each one's clients.

    Each result is copied before the next one is made, so only one cohort's models exist twice.
    """
    made, whole, clients = iter(results), Tree(), sum(map(len, parts))
    for part in parts:
        _copy_into(whole, next(made), part, clients)
    model = Model(whole["params"], whole["buffers"])
    return TrainingResult(model, *(whole[name] for name in TrainingResult._fields[1:]))


def _copy_into(whole: Tree, result: TrainingResult, part: Tensor, clients: int) -> None:
    """Copy a cohort's result to its clients' rows; the first call allocates all rows."""
    leaves = {**result.model._asdict(), **result._asdict()}
    del leaves["model"]
    whole |= whole or trees.tree_map(lambda leaf: leaf.new_empty(clients, *leaf.shape[1:]), leaves)
    rows = part.to(result.loss.device, non_blocking=True)
    trees.tree_map(lambda into, leaf: into.index_copy_(0, rows, leaf), whole, leaves)


class Cohort:
    """Everything that S clients train with: models, moments, and what the pieces hold."""

    def __init__(self, net: BoundNetwork, data: DeviceData, job: TrainingJob) -> None:
        self.net, self.data = net, data
        self.optimizer, self.clipping = job.optimizer, job.clipping
        self.trained = job.trained
        clients, held = len(job.plans), job.objective.held
        self.model = job.start.map(lambda tree: repeat_arranged(tree, clients))
        self.low_params = net.to_low_precision(self.model.params)
        self.moments = {
            name: trees.tree_map(torch.zeros_like, self.model.params)
            for name in job.optimizer.moments
        }
        self.objective = replace(job.objective, held=trees.tree_map(copy_arranged, held))
        self.views = {
            piece: {
                name: self._prepare_view(f"{piece}.{name}", view) for name, view in views.items()
            }
            for piece, views in self.objective.views().items()
        }
        self.second = None
        if self.objective.perturbing:
            self.second = SecondModel.allocate(net, self.model)
        self.losses = torch.zeros(clients, dtype=data.scale.dtype, device=data.scale.device)
        self.terms = {name: torch.zeros_like(self.losses) for name in self.objective.terms}
        self.clock = Clock(job.optimizer, job.factors, self.losses.device)
        self.draws = KeyedDraws([plan.seed for plan in job.plans], self.losses.device)

    def _prepare_view(self, name: str, view: Model) -> Model:
        view = view.map(lambda tree: trees.tree_map(arrange, tree))
        return self.net.companion(name, view.shared).prepare(view)

    def train(self, plans: Sequence[BatchPlan]) -> TrainingResult:
        """Train by the plans, which are in packing order."""
        for block in make_blocks(plans):
            self._run(block, self.make_step(block))
        steps = torch.tensor([plan.steps for plan in plans])
        steps = steps.to(self.losses.device, non_blocking=True)
        self.net.count_batches(self.model.buffers, steps)
        terms = {name: sum_ / steps for name, sum_ in self.terms.items()}
        return TrainingResult(self.model, self.losses / steps, steps, terms, self.objective.moved)

    def make_step(self, block: Block) -> Step:
        """Return the function that takes one step of a block's clients."""
        return CohortPart(self, block.rows)

    def keep_trained(self, grads: Tree) -> Tree:
        """Return the gradients of the parameters that take steps."""
        return grads if self.trained is None else {name: grads[name] for name in self.trained}

    def finish_step(self, part: "CohortPart", grads: Tree) -> None:
        """Correct and clip the gradients [s, ...] and take the optimizer's step."""
        clipping = self.clipping
        grads = self.keep_trained(grads)
        with phase("corrections"):
            if clipping and clipping.first:
                grads = clipping(grads)
            grads = part.objective.correct(grads, part.params)
            if clipping and not clipping.first:
                grads = clipping(grads)
        with phase("optimizer"):
            moments, low_params = part.moments, part.low_params
            update(part.trained_params, grads, moments, low_params, self.optimizer, self.clock)

    def _run(self, block: Block, take_step: Step) -> None:
        device = self.losses.device
        indices = block.indices.to(device, non_blocking=True).unbind(1)
        draws: Iterable[Tensor | None] = [None] * len(indices)
        if block.draws is not None:
            draws = block.draws.to(device, non_blocking=True).unbind(1)
        for step, (batch, batch_draws) in enumerate(zip(indices, draws, strict=True), block.first):
            if self.clock.moves:
                self.clock.set(step)
            if self.net.random is not False:
                self.draws.seeds.set_step(step)
            take_step(batch, batch_draws)


class CohortPart:
    """Neighbouring clients that take a step together, bound to their rows of all tensors."""

    def __init__(self, cohort: Cohort, rows: slice) -> None:
        self.cohort, self.net, self.rows = cohort, cohort.net, rows
        self.losses = cohort.losses[rows]
        self.terms = {name: sum_[rows] for name, sum_ in cohort.terms.items()}
        self.params = trees.rows(cohort.model.params, rows)
        names = self.params if cohort.trained is None else cohort.trained
        self.trained_params = {name: p for name, p in self.params.items() if name in names}
        self.low_params = trees.rows(cohort.low_params, rows)
        self.moments = trees.rows(cohort.moments, rows)
        self.objective = cohort.objective.rows(rows)
        self.buffers = trees.rows(cohort.model.buffers, rows)
        self.leaves = self.net.bind(Model(self.params | self.low_params, self.buffers))
        self.frozen = {
            piece: {
                name: self.net.bind_frozen(f"{piece}.{name}", view.rows(rows))
                for name, view in views.items()
            }
            for piece, views in cohort.views.items()
        }
        self.second = cohort.second and SecondPass(self.net, cohort.second.rows(rows))
        self.draws = cohort.draws.rows(rows)
        self.net.module.train()

    def __call__(self, indices: Tensor, draws: Tensor | None) -> None:
        """Take one step on the samples [s, B]."""
        with phase("data"):
            inputs, labels = self.cohort.data.fetch(indices, draws)
        with phase("forward and backward"):
            with self.net.draw_from(self.draws):
                outputs = self._forward(self.net, inputs, indices)
                views = self._run_views(inputs)
            loss, terms = self._loss(self.net, outputs, labels, views)
            grads, offset = self._gradients(loss, self.leaves), Tree()
        if self.second:
            grads = self.cohort.keep_trained(grads)
            offset = self._move(self.second, grads)
            again = self._differentiate_again(self.second, inputs, labels, indices, views)
            grads = self.objective.blend(grads, again)
        with torch.no_grad():
            self.objective.advance(grads, offset)
            self.cohort.finish_step(self, grads)
            self.losses += loss.detach()
            for name, total in self.terms.items():
                total += terms.get(name, 0.0)

    def _loss(
        self, net: BoundNetwork, outputs: Outputs, labels: Tensor, views: Views
    ) -> tuple[Tensor, Tree]:
        """Return the loss of each client [s], and its terms by name."""
        mask = torch.ones_like(labels, dtype=torch.bool)
        batch = Batch(*outputs, labels, mask, classify=partial(self._classify, net))
        return self.objective.loss(batch, views)

    def _classify(self, net: BoundNetwork, features: Tensor) -> Tensor:
        """Map features [s or 1, M, d] to logits [s, M, C] by the clients' heads."""
        return net.classify(features.expand(len(self.losses), -1, -1))

    def _move(self, second: SecondPass, grads: Tree) -> Tree:
        """Move the second pass to the parameters plus an offset; return the offset [s, ...]."""
        with torch.no_grad(), phase("offset"):
            offset = self.objective.perturb(grads, self.trained_params)
            second.move(self.params, self.buffers, offset)
        return offset

    def _differentiate_again(
        self, second: SecondPass, inputs: InputTree, labels: Tensor, indices: Tensor, views: Views
    ) -> Tree:
        """Return the gradients of the second pass, for parameters that take steps."""
        with phase("forward and backward"):
            with self.net.draw_from(self.draws):
                outputs = self._forward(second.net, inputs, indices)
            loss, _ = self._loss(second.net, outputs, labels, views)
            return self.cohort.keep_trained(self._gradients(loss, second.leaves))

    def _gradients(self, loss: Tensor, leaves: Sequence[Tensor]) -> Tree:
        grads = torch.autograd.grad(loss.sum(), leaves, allow_unused=True)
        unused = [name for name, grad in zip(self.params, grads, strict=True) if grad is None]
        require(
            not unused,
            f"the loss does not depend on {', '.join(unused[:3])}: set requires_grad=False there, "
            "or remove it from the network",
        )
        return self.net.gradient_tree(grads)

    def _run_views(self, inputs: InputTree) -> Views:
        """Return the outputs of the further models, by piece and name."""
        with torch.no_grad():
            return {
                piece: {name: net(inputs) for name, net in nets.items()}
                for piece, nets in self.frozen.items()
            }

    def _forward(self, net: BoundNetwork, inputs: InputTree, indices: Tensor) -> Outputs:
        try:
            return net(inputs)
        except ValueError as problem:
            message = f"cannot train on a batch of {indices.shape[1]}: {problem}"
            raise UserError(message) from problem
