"""Mistakes in momentum between rounds: FedAdam, FedYogi, FedAdagrad, FedACG, FedCM."""

from dataclasses import replace

import torch
from torch import Tensor

from fedfm.core.trees import Tree, tree_map
from fedfm.methods import (
    FedACG,
    FedAdagrad,
    FedAdam,
    FedCM,
    FedYogi,
    LocalRun,
    Model,
    Participation,
    Task,
)
from fedfm.optim import Sgd
from fedfm.verify.mistakes.planting import plant


@plant("m and v are corrected for their start (an old Flower)")
class MomentsCorrected(FedAdam):
    """A round's step is m / (1 - beta_1^t) over the root of v / (1 - beta_2^t)."""

    def server_state(self, task: Task) -> Tree:
        like = next(iter(task.params.values()))
        return super().server_state(task) | {"round": like.new_zeros(())}

    def step(
        self, server: Tree, delta: Tree, total: Tree, participation: Participation
    ) -> tuple[Tree, Tree]:
        state, _ = super().step(server, delta, total, participation)
        t = server["round"] + 1
        first, second = 1 - self.beta1**t, 1 - self.beta2**t

        def move(m: Tensor, v: Tensor) -> Tensor:
            corrected: Tensor = (m / first) / ((v / second).sqrt() + self.tau)
            return self.lr * corrected

        return state | {"round": t}, tree_map(move, state["mean"], state["square"])


@plant("tau is 1e-9, whatever is set (an old Flower)")
class TauFixed(FedAdam):
    """The smallest changes move the model by the whole rate."""

    def step(
        self, server: Tree, delta: Tree, total: Tree, participation: Participation
    ) -> tuple[Tree, Tree]:
        return FedAdam.step(replace(self, tau=1e-9), server, delta, total, participation)


@plant("v starts at 0 instead of tau^2")
class SecondMomentFromZero(FedAdam):
    """The first steps are too long."""

    def server_state(self, task: Task) -> Tree:
        zeros = tree_map(torch.zeros_like, task.params)
        return super().server_state(task) | {"square": zeros}


@plant("the bias correction counts the first step as the second", bias_correction=True)
class CountsAhead(FedAdam):
    """The first steps are too short."""

    def step(
        self, server: Tree, delta: Tree, total: Tree, participation: Participation
    ) -> tuple[Tree, Tree]:
        later = server | {"steps": server["steps"] + 1}
        state, step = super().step(later, delta, total, participation)
        return state | {"steps": server["steps"] + 1}, step


@plant("with the bias correction, too, v starts at tau^2", bias_correction=True)
class FullStart(FedAdam):
    """v is not 0 before the first round."""

    def server_state(self, task: Task) -> Tree:
        return super().server_state(task) | {"square": FedAdam().server_state(task)["square"]}


@plant("v is Adam's")
class SignMissing(FedYogi):
    """V falls by a share of itself."""

    def grow(self, v: Tensor, square: Tensor) -> Tensor:
        return self.beta2 * v + (1 - self.beta2) * square


@plant("the sign is inverted")
class SignInverted(FedYogi):
    """V moves away from D^2."""

    def grow(self, v: Tensor, square: Tensor) -> Tensor:
        return v + (1 - self.beta2) * square * (v - square).sign()


@plant("v forgets the rounds before")
class OnlyLastRound(FedAdagrad):
    """V is D^2 alone."""

    def grow(self, v: Tensor, square: Tensor) -> Tensor:
        return square


@plant("m has Adam's beta_1")
class AdamsMomentum(FedAdagrad):
    """The mean change moves slowly."""

    def step(
        self, server: Tree, delta: Tree, total: Tree, participation: Participation
    ) -> tuple[Tree, Tree]:
        return FedAdagrad.step(replace(self, beta1=0.9), server, delta, total, participation)


@plant("the pull lacks the 1/2 of the loss (the authors' code)", strength=0.1)
class HalfMissing(FedACG):
    """The gradient gets 2 beta (y - w)."""

    def correct(self, grads: Tree, params: Tree, held: Tree) -> Tree:
        return FedACG.correct(replace(self, strength=2 * self.strength), grads, params, held)


@plant("the model moves from w instead of x: momentum counts twice")
class MomentumTwice(FedACG):
    """x+ = w + m+."""

    def step(
        self, server: Tree, delta: Tree, total: Tree, participation: Participation
    ) -> tuple[Tree, Tree]:
        old = server["momentum"]
        state, momentum = super().step(server, delta, total, participation)
        return state, tree_map(lambda new, m: new + self.momentum * m, momentum, old)


@plant("clients start at x: momentum at the server alone")
class ClientsNotAhead(FedACG):
    """FedAvgM with a pull."""

    def start(self, server: Tree, params: Tree) -> Tree:
        return params


@plant("K is that of the cohort's first client (a public simulator)")
class StepsOfFirstClient(FedCM):
    """Clients with fewer steps count for less."""

    def finish(self, client: Tree, run: LocalRun, down: Tree) -> tuple[Tree, Tree]:
        return super().finish(client, run._replace(steps=run.steps[:1].expand_as(run.steps)), down)


@plant("divides by K instead of a(K, rho) under momentum")
class DividesByK(FedCM):
    """V is too large by up to 1 / (1 - rho)."""

    def finish(self, client: Tree, run: LocalRun, down: Tree) -> tuple[Tree, Tree]:
        plain = Sgd(run.optimizer.lr, momentum=0.0, weight_decay=0.0)
        return super().finish(client, run._replace(optimizer=plain), down)


@plant("alpha and 1 - alpha are swapped")
class AlphaSwapped(FedCM):
    """Most of a step is the client's own gradient."""

    def prepare(self, client: Tree, received: Model, down: Tree) -> Tree:
        return FedCM.prepare(replace(self, alpha=1 - self.alpha), client, received, down)

    def correct(self, grads: Tree, params: Tree, held: Tree) -> Tree:
        return FedCM.correct(replace(self, alpha=1 - self.alpha), grads, params, held)
