"""Mistakes in how the server aggregates: FedAvg, FedNova, FedAvgM."""

import torch
from torch import Tensor

from fedfm.core.trees import Tree, tree_map
from fedfm.methods import FedAvg, FedAvgM, FedNova, LocalRun, Participation, Task
from fedfm.optim import Sgd
from fedfm.verify.mistakes.planting import plant


@plant("clients count alike, whatever their data")
class ClientsCountAlike(FedAvg):
    """x+ = mean y_i."""

    def weights(self, weights: Tensor, run: LocalRun) -> Tensor:
        return torch.ones_like(weights)


@plant("plain K instead of a(K, rho) under momentum")
class DividesByK(FedNova):
    """Clients are normalised by their steps, whatever the momentum."""

    def normaliser(self, run: LocalRun) -> Tensor:
        plain = Sgd(run.optimizer.lr, momentum=0.0, weight_decay=0.0)
        return run._replace(optimizer=plain).accumulation


@plant("the whole is multiplied by N/S")
class MultipliedByPopulation(FedNova):
    """The step is too long if not all clients take part."""

    def step(
        self, server: Tree, delta: Tree, total: Tree, participation: Participation
    ) -> tuple[Tree, Tree]:
        return server, tree_map(lambda d: d / participation.fraction, delta)


@plant("with FedProx, the normaliser ignores the proximal factors")
class ProximalFactorsIgnored(FedNova):
    """a_i is that of a loss without a proximal term."""

    def normaliser(self, run: LocalRun) -> Tensor:
        return run._replace(pull=0.0).accumulation


@plant("BatchNorm buffers are averaged with the method's weights instead of the data shares")
class BuffersByMethodsWeights(FedNova):
    """The weights overwrite the data shares, with which buffers are averaged afterwards."""

    def weights(self, weights: Tensor, run: LocalRun) -> Tensor:
        return weights.copy_(super().weights(weights, run))


@plant("the update is damped by 1 - beta", beta=0.7)
class UpdateDamped(FedAvgM):
    """v = beta v + (1 - beta) d."""

    def step(
        self, server: Tree, delta: Tree, total: Tree, participation: Participation
    ) -> tuple[Tree, Tree]:
        scaled = tree_map(lambda d: (1 - self.beta) * d, delta)
        return super().step(server, scaled, total, participation)


@plant("Nesterov's step", beta=0.7)
class NesterovStep(FedAvgM):
    """x+ = x + d + beta v."""

    def step(
        self, server: Tree, delta: Tree, total: Tree, participation: Participation
    ) -> tuple[Tree, Tree]:
        state, velocity = super().step(server, delta, total, participation)
        return state, tree_map(lambda d, v: d + self.beta * v, delta, velocity)


@plant("the first round's update is thrown away", beta=0.7)
class FirstUpdateLost(FedAvgM):
    """The first round only fills the velocity."""

    def server_state(self, task: Task) -> Tree:
        like = next(iter(task.params.values()))
        return super().server_state(task) | {"begun": like.new_zeros(())}

    def step(
        self, server: Tree, delta: Tree, total: Tree, participation: Participation
    ) -> tuple[Tree, Tree]:
        state, velocity = super().step(server, delta, total, participation)
        moves = tree_map(lambda v: server["begun"] * v, velocity)
        return state | {"begun": torch.ones_like(server["begun"])}, moves
