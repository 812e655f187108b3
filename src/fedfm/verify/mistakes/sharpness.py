"""Mistakes in second passes: FedSAM, MoFedSAM, FedSpeed, FedSMOO."""

from typing import Any

import torch
from torch import Tensor

from fedfm.core.trees import Tree, tree_map
from fedfm.engine.cohort import CohortPart
from fedfm.engine.second_pass import SecondPass
from fedfm.methods import FedSAM, FedSMOO, FedSpeed, LocalRun, MoFedSAM, Participation
from fedfm.verify.mistakes.planting import plant, plant_in

differentiate_again = CohortPart._differentiate_again


@plant("a flat offset is indexed by the number of the tensor (the authors' code of a follower)")
class OffsetIndexedByTensor(FedSAM):
    """Tensor number k is shifted by entry k of the whole offset."""

    def perturb(self, grads: Tree, params: Tree, held: Tree) -> Tree:
        offset = super().perturb(grads, params, held)
        flat = torch.cat([e.flatten(1) for e in offset.values()], dim=1)
        return {
            name: torch.ones_like(e) * flat[:, k].view(-1, *[1] * (e.dim() - 1))
            for k, (name, e) in enumerate(offset.items())
        }


@plant("every tensor has its own norm")
class NormOfEachTensor(FedSAM):
    """Each is moved by the whole radius."""

    def perturb(self, grads: Tree, params: Tree, held: Tree) -> Tree:
        alone = [FedSAM.perturb(self, {name: g}, params, held) for name, g in grads.items()]
        return {name: e for offset in alone for name, e in offset.items()}


@plant("T instead of T^2", adaptive=0.2)
class ScaleNotSquared(FedSAM):
    """The offset is radius T g / ||T g||."""

    def perturb(self, grads: Tree, params: Tree, held: Tree) -> Tree:
        offset = super().perturb(grads, params, held)
        return {name: e / (params[name].abs() + self.adaptive) for name, e in offset.items()}


@plant_in(
    CohortPart,
    "_differentiate_again",
    "the second pass runs in eval mode",
    FedSAM(),
)
def differentiate_in_eval_mode(self: CohortPart, second: SecondPass, *args: Any) -> Tree:
    """Let batch norm use its running statistics."""
    second.net.module.eval()
    return differentiate_again(self, second, *args)


@plant_in(
    CohortPart,
    "_differentiate_again",
    "both passes move the statistics of batch norm",
    FedSAM(),
)
def keep_second_statistics(self: CohortPart, second: SecondPass, *args: Any) -> Tree:
    """Write the statistics of the second pass over those of the first."""
    grads = differentiate_again(self, second, *args)
    for name, buffer in second.model.buffers.items():
        self.buffers[name].copy_(buffer)
    return grads


@plant("K is that of the cohort's first client (a public simulator)")
class StepsOfFirstClient(MoFedSAM):
    """Clients with fewer steps count for less."""

    def finish(self, client: Tree, run: LocalRun, down: Tree) -> tuple[Tree, Tree]:
        return super().finish(client, run._replace(steps=run.steps[:1].expand_as(run.steps)), down)


@plant("the offset has the direction of the step instead of the gradient")
class OffsetAlongStep(MoFedSAM):
    """V is part of the ascent."""

    def perturb(self, grads: Tree, params: Tree, held: Tree) -> Tree:
        return super().perturb(self.correct(grads, params, held), params, held)


@plant("models are amended by h_i before its update")
class AmendedByOldDrift(FedSpeed):
    """The client sends y_i - h_i / strength."""

    def amend(self, change: Tree, client: Tree) -> Tree:
        before = tree_map(lambda h, d: h + self.strength * d, client["drift"], change)
        return super().amend(change, {"drift": before})


@plant("models are amended, too, if the server subtracts h", over_all=True)
class Twice(FedSpeed):
    """h is subtracted twice."""

    def amend(self, change: Tree, client: Tree) -> Tree:
        return FedSpeed(strength=self.strength).amend(change, client)


@plant("the server's h is the mean over the cohort", over_all=True)
class OverCohort(FedSpeed):
    """It grows by the mean change, whatever the share of clients that take part."""

    def step(
        self, server: Tree, delta: Tree, total: Tree, participation: Participation
    ) -> tuple[Tree, Tree]:
        everyone = participation._replace(population=participation.clients)
        return super().step(server, delta, total, everyone)


@plant("mix is 1 - mix", mix=0.7)
class MixSwapped(FedSpeed):
    """Most of a step is the first gradient."""

    def blend(self, first: Tree, second: Tree) -> Tree:
        return super().blend(second, first)


@plant("the server leaves out the last offset (the authors' code)")
class LastOffsetLeftOut(FedSMOO):
    """s is made of mu_i."""

    def finish(self, client: Tree, run: LocalRun, down: Tree) -> tuple[Tree, Tree]:
        _, kept = super().finish(client, run, down)
        return {"dual": run.moved["dual"]}, kept


@plant("the last offset is left out at the client, too", last_offset=False)
class LosesOffset(FedSMOO):
    """The client keeps mu_i - e."""

    def finish(self, client: Tree, run: LocalRun, down: Tree) -> tuple[Tree, Tree]:
        sent, kept = super().finish(client, run, down)
        return sent, kept | {"dual": tree_map(torch.sub, kept["dual"], run.moved["offset"])}


@plant("mu_i starts anew in every round")
class DualForgotten(FedSMOO):
    """A client's mu_i is that of one round."""

    def finish(self, client: Tree, run: LocalRun, down: Tree) -> tuple[Tree, Tree]:
        sent, kept = super().finish(client, run, down)
        return sent, kept | {"dual": client["dual"]}


@plant("s is not brought to the length of the radius")
class DualNotScaled(FedSMOO):
    """s is the mean of u_i."""

    def step(
        self, server: Tree, delta: Tree, total: Tree, participation: Participation
    ) -> tuple[Tree, Tree]:
        kept, step = super().step(server, delta, total, participation)

        def average(u: Tensor) -> Tensor:
            return u / participation.clients

        return kept | {"shared": tree_map(average, total["dual"])}, step


@plant("offsets ignore mu_i and s")
class OffsetsIgnoreDuals(FedSMOO):
    """The ascent is FedSAM's."""

    def perturb(self, grads: Tree, params: Tree, held: Tree) -> Tree:
        none = tree_map(torch.zeros_like, held["shared"])
        return super().perturb(grads, params, held | {"dual": none, "shared": none})
