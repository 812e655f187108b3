"""Mistakes in methods that correct client drift: SCAFFOLD, FedDyn, FedProx."""

import torch
from torch import Tensor

from fedfm.core.trees import Tree, per_client, tree_map
from fedfm.methods import FedDyn, FedProx, LocalRun, Model, Participation, Scaffold, Task
from fedfm.optim import Sgd
from fedfm.verify.mistakes.planting import plant


@plant("divides by K instead of a(K, rho) under momentum")
class DividesByK(Scaffold):
    """c_i+ is too large by up to 1 / (1 - rho)."""

    def finish(self, client: Tree, run: LocalRun, down: Tree) -> tuple[Tree, Tree]:
        plain = Sgd(run.optimizer.lr, momentum=0.0, weight_decay=0.0)
        return super().finish(client, run._replace(optimizer=plain), down)


@plant("c_i is never written back")
class ControlsNotWritten(Scaffold):
    """The correction stays c - 0."""

    def finish(self, client: Tree, run: LocalRun, down: Tree) -> tuple[Tree, Tree]:
        return super().finish(client, run, down)[0], client


@plant("the sign of the correction is inverted")
class CorrectionInverted(Scaffold):
    """The gradient gets c_i - c, which pushes clients apart."""

    def correct(self, grads: Tree, params: Tree, held: Tree) -> Tree:
        return tree_map(torch.sub, grads, held["correction"])


@plant("the correction goes to a tensor that nobody reads")
class CorrectionDropped(Scaffold):
    """Clients train as in FedAvg."""

    def correct(self, grads: Tree, params: Tree, held: Tree) -> Tree:
        super().correct(grads, params, held)
        return grads


@plant("c starts from the weights instead of 0")
class ControlFromWeights(Scaffold):
    """The first correction is the model itself."""

    def server_state(self, task: Task) -> Tree:
        return {"control": dict(task.params)}


@plant("models are averaged by data share instead of plainly")
class AveragedByData(Scaffold):
    """x+ = sum p_i y_i."""

    def weights(self, weights: Tensor, run: LocalRun) -> Tensor:
        return weights


@plant("S/N is missing from the server's c")
class FractionMissing(Scaffold):
    """c moves as if all clients had taken part."""

    def step(
        self, server: Tree, delta: Tree, total: Tree, participation: Participation
    ) -> tuple[Tree, Tree]:
        return super().step(
            server, delta, total, participation._replace(population=participation.clients)
        )


@plant("the quadratic term is dropped", alpha=0.2)
class QuadraticDropped(FedDyn):
    """Only - h_i is added to the gradient."""

    def prepare(self, client: Tree, received: Model, down: Tree) -> Tree:
        return {"fixed": tree_map(torch.neg, client["drift"])}

    def correct(self, grads: Tree, params: Tree, held: Tree) -> Tree:
        return tree_map(torch.add, grads, held["fixed"])


@plant("the norm is not squared", alpha=0.2)
class NormNotSquared(FedDyn):
    """The gradient is that of alpha ||w - x|| - <h_i, w>."""

    def prepare(self, client: Tree, received: Model, down: Tree) -> Tree:
        return {"drift": client["drift"], "reference": received.params}

    def correct(self, grads: Tree, params: Tree, held: Tree) -> Tree:
        difference = tree_map(torch.sub, params, held["reference"])
        squares = [w.flatten(1).square().sum(1) for w in difference.values()]
        length = torch.stack(squares).sum(0).sqrt().clamp(min=1e-12)

        def add(g: Tensor, w: Tensor, h: Tensor) -> Tensor:
            return g + self.alpha * w / per_client(length, w) - h

        return tree_map(add, grads, difference, held["drift"])


@plant("the penalty has no gradient at all", alpha=0.2)
class PenaltyDetached(FedDyn):
    """Local training is FedAvg's."""

    def correct(self, grads: Tree, params: Tree, held: Tree) -> Tree:
        return grads


@plant("alpha is divided by the client's weight in one term only", alpha=0.2)
class AlphaWeightedInOneTerm(FedDyn):
    """h_i is updated with alpha / weight, the weight being the client's steps over their mean."""

    def finish(self, client: Tree, run: LocalRun, down: Tree) -> tuple[Tree, Tree]:
        weight = run.steps / run.steps.double().mean()

        def update(h: Tensor, y: Tensor, x: Tensor) -> Tensor:
            return h - self.alpha / per_client(weight, y) * (y - x)

        drift = tree_map(update, client["drift"], run.end.params, run.start.params)
        return {}, {"drift": drift}


@plant("the server's h takes the cohort's mean instead of 1/N of its sum", alpha=0.2)
class CohortMeanInsteadOfShare(FedDyn):
    """h moves as if all clients had taken part."""

    def step(
        self, server: Tree, delta: Tree, total: Tree, participation: Participation
    ) -> tuple[Tree, Tree]:
        return super().step(
            server, delta, total, participation._replace(population=participation.clients)
        )


@plant("pulls towards zero instead of the received model", mu=0.3)
class PullsTowardsZero(FedProx):
    """The gradient gets mu w, which is weight decay."""

    def correct(self, grads: Tree, params: Tree, held: Tree) -> Tree:
        return tree_map(lambda g, w: g + self.mu * w, grads, params)


@plant("the gradient has mu/2 instead of mu", mu=0.3)
class GradientHalved(FedProx):
    """The 1/2 of the loss stays in its gradient."""

    def correct(self, grads: Tree, params: Tree, held: Tree) -> Tree:
        half = self.mu / 2
        return tree_map(lambda g, w, x: g + half * (w - x), grads, params, held["reference"])
