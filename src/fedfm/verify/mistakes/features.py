"""Mistakes in methods with a loss on features: MOON, FedProto, FedFM, FedFM-Lite."""

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fedfm.core.trees import Tree, per_client, tree_map
from fedfm.methods import Batch, FedFM, FedFMLite, FedProto, LocalRun, Model, Moon, Task
from fedfm.methods.fedfm import contrastive_guiding
from fedfm.verify.mistakes.planting import plant

MATCHING: dict[str, Any] = {"strength": 1.0, "start_round": 0}
LATER = MATCHING | {"start_round": 2}


@plant("the previous model is not updated", mu=2.0)
class PreviousModelNotUpdated(Moon):
    """A client always contrasts with its first model."""

    def finish(self, client: Tree, run: LocalRun, down: Tree) -> tuple[Tree, Tree]:
        def keep_old(old: Tensor, new: Tensor) -> Tensor:
            return torch.where(per_client(client["exists"], new), old, new)

        _, fresh = super().finish(client, run, down)
        return {}, tree_map(keep_old, client, fresh)


@plant("positive and negative are swapped", mu=2.0)
class PositiveAndNegativeSwapped(Moon):
    """The loss pushes features away from those of the global model."""

    def loss(self, batch: Batch, held: Tree) -> Tensor:
        views = {"received": batch.views["previous"], "previous": batch.views["received"]}
        return super().loss(batch._replace(views=views), held)


@plant("the temperature is left out", mu=2.0)
class TemperatureLeftOut(Moon):
    """The loss has tau = 1."""

    def loss(self, batch: Batch, held: Tree) -> Tensor:
        return Moon.loss(replace(self, tau=1.0), batch, held)


@plant("the previous model runs with the BatchNorm statistics of the received one", mu=2.0)
class BorrowedBuffers(Moon):
    """Its parameters are kept, its buffers are not."""

    def prepare(self, client: Tree, received: Model, down: Tree) -> Tree:
        held = super().prepare(client, received, down)
        params = held["previous"]["params"]
        clients = len(next(iter(params.values())))
        buffers = received.rows(torch.zeros(clients, dtype=torch.int64)).buffers
        spread = {k: v.expand(clients, *v.shape[1:]) for k, v in buffers.items()}
        return held | {"previous": {"params": params, "buffers": spread}}


@plant("features are normalised", strength=0.5)
class FeaturesNormalised(FedProto):
    """The distance is FedFM's."""

    def loss(self, batch: Batch, held: Tree) -> Tensor:
        return super().loss(batch._replace(features=F.normalize(batch.features, dim=-1)), held)


@plant("the squared distance is averaged over the d coordinates", strength=0.5)
class DistanceAveraged(FedProto):
    """The loss is too weak by a factor of d."""

    def loss(self, batch: Batch, held: Tree) -> Tensor:
        return super().loss(batch, held) / batch.features.shape[-1]


@plant("the zero vector of an unseen class takes part in the softmax", **MATCHING)
class UnseenClassInSoftmax(FedFM):
    """Every class has a logit."""

    def loss(self, batch: Batch, held: Tree) -> Tensor:
        features = F.normalize(batch.features, dim=-1)
        everything = torch.ones_like(held["seen"])
        each = contrastive_guiding(
            features, batch.labels, held["anchors"], everything, self.temperature
        )
        return self.mean_loss(each, batch.labels, held["seen"])


@plant("an absent class divides 0 by 0", **MATCHING)
class AbsentClassDividesByZero(FedFM):
    """The anchor of an absent class is NaN."""

    def absorb(self, server: Tree, total: Tree, clients: int) -> Tree:
        anchors = total["sum"] / total["count"].unsqueeze(-1)
        return {"anchors": anchors, "seen": server["seen"] | (total["count"] > 0)}


@plant("a class absent from a round loses its anchor", **MATCHING)
class AbsentClassLosesAnchor(FedFM):
    """Only the classes of this round have an anchor."""

    def absorb(self, server: Tree, total: Tree, clients: int) -> Tree:
        empty = {name: torch.zeros_like(leaf) for name, leaf in server.items()}
        return super().absorb(empty, total, clients)


@plant("weighted anchors are a plain mean over clients", **MATCHING)
class AnchorsUnweighted(FedFM):
    """Every holder of a class has the same weight."""

    def report(self, statistic: Tree) -> Tree:
        means = statistic["sum"] / statistic["count"].clamp(min=1).unsqueeze(-1)
        return {"sum": means, "count": statistic["count"].clamp(max=1)}


@plant("features are not normalised", **MATCHING)
class FeaturesNotNormalised(FedFM):
    """The softmax is over inner products instead of cosines."""

    def loss(self, batch: Batch, held: Tree) -> Tensor:
        anchors, seen = held["anchors"], held["seen"]
        each = contrastive_guiding(batch.features, batch.labels, anchors, seen, self.temperature)
        return self.mean_loss(each, batch.labels, seen)


@plant("anchors are normalised before they are averaged", **MATCHING)
class AnchorsNormalisedEarly(FedFM):
    """Anchors are means of unit features, in which long features do not dominate."""

    def statistic(self, batch: Batch) -> Tree:
        return super().statistic(batch._replace(features=F.normalize(batch.features, dim=-1)))


@plant("L2 guiding is averaged over the d coordinates", **MATCHING, guide="l2")
class GuidingAveraged(FedFM):
    """The loss is too weak by a factor of d."""

    def loss(self, batch: Batch, held: Tree) -> Tensor:
        return super().loss(batch, held) / batch.features.shape[-1]


@plant("matching begins a round before T_s", **LATER)
class MatchingEarly(FedFM):
    """T_s counts from 1."""

    @property
    def first_round(self) -> int:
        return self.start_round - 1


@plant("the warm-up begins with strength 0", **LATER, warm_up=4)
class WarmUpFromZero(FedFM):
    """The first round of matching counts as 0 of W."""

    def prepare(self, client: Tree, received: Model, down: Tree) -> Tree:
        return super().prepare(client, received, down | {"rounds": down["rounds"] - 1})


@plant("the warm-up begins in round 0 instead of T_s", **LATER, warm_up=4)
class WarmUpEarly(FedFM):
    """The strength has risen by T_s rounds when matching begins."""

    def server_state(self, task: Task) -> Tree:
        state = super().server_state(task)
        return state | {"rounds": state["rounds"] + self.start_round}


@plant("the first anchors are taken in round T_s instead of the one before", **LATER)
class FirstAnchorsLate(FedFMLite):
    """Matching begins a round after T_s."""

    @property
    def first_round(self) -> int:
        return self.start_round


@plant("samples without an anchor count in the mean", **MATCHING)
class AllSamplesCount(FedFMLite):
    """The sum of the losses is divided by the batch size."""

    def mean_loss(self, each: Tensor, labels: Tensor, seen: Tensor) -> Tensor:
        taking_part = seen.expand(len(labels), -1).gather(-1, labels)
        return self.strength * each.masked_fill(~taking_part, 0.0).mean(-1)


@plant("anchors are taken before training instead of after", **MATCHING)
class AnchorsBeforeTraining(FedFMLite):
    """Lite has the two handshakes of FedFM."""

    measures = "before"


@plant("a client without the class counts as a zero anchor", **MATCHING, anchors="uniform")
class MissingClassCountsAsZero(FedFMLite):
    """The sum of the means is divided by S, not by the number of holders."""

    def absorb(self, server: Tree, total: Tree, clients: int) -> Tree:
        held = total["holders"] > 0
        new = torch.where(held.unsqueeze(-1), total["mean"] / clients, server["anchors"])
        return {"anchors": new, "seen": server["seen"] | held}
