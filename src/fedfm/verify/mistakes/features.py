"""Mistakes in methods that guide features: MOON, FedProto, FedFM, FedFM-Lite."""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from fedfm.core.trees import Tree, per_client, tree_map
from fedfm.methods import Batch, FedFM, FedFMLite, FedProto, LocalRun, Model, Moon
from fedfm.methods.fedfm import contrastive_guiding
from fedfm.verify.mistakes.planting import plant


@plant("the previous model is not updated", mu=2.0)
class Stuck(Moon):
    """A client contrasts with its first model for ever."""

    def finish(self, client: Tree, run: LocalRun, down: Tree) -> tuple[Tree, Tree]:
        """Keep what there is, if there is anything."""

        def older(old: Tensor, new: Tensor) -> Tensor:
            return torch.where(per_client(client["exists"], new), old, new)

        _, fresh = super().finish(client, run, down)
        return {}, tree_map(older, client, fresh)


@plant("positive and negative are swapped", mu=2.0)
class Swapped(Moon):
    """Away from the global model."""

    def loss(self, batch: Batch, held: Tree) -> Tensor:
        """The views under each other's name."""
        views = {"received": batch.views["previous"], "previous": batch.views["received"]}
        return super().loss(batch._replace(views=views), held)


@plant("the temperature is left out", mu=2.0)
class NoTemperature(Moon):
    """tau = 1."""

    def loss(self, batch: Batch, held: Tree) -> Tensor:
        """Without tau."""
        return Moon.loss(replace(self, tau=1.0), batch, held)


@plant("the previous model runs with the BatchNorm statistics of the received one", mu=2.0)
class BorrowedBuffers(Moon):
    """Its parameters are kept, its buffers are not."""

    def prepare(self, client: Tree, received: Model, down: Tree) -> Tree:
        """Buffers as received."""
        held = super().prepare(client, received, down)
        params = held["previous"]["params"]
        clients = len(next(iter(params.values())))
        buffers = received.rows(torch.zeros(clients, dtype=torch.int64)).buffers
        spread = {k: v.expand(clients, *v.shape[1:]) for k, v in buffers.items()}
        return held | {"previous": {"params": params, "buffers": spread}}


@plant("features are normalised", strength=0.5)
class UnitFeatures(FedProto):
    """FedFM's distance."""

    def loss(self, batch: Batch, held: Tree) -> Tensor:
        """Unit features."""
        return super().loss(batch._replace(features=F.normalize(batch.features, dim=-1)), held)


@plant("the squared distance is averaged over the d coordinates", strength=0.5)
class MeanDistance(FedProto):
    """Weaker by a factor of d."""

    def loss(self, batch: Batch, held: Tree) -> Tensor:
        """Divided by d."""
        return super().loss(batch, held) / batch.features.shape[-1]


@plant("the zero vector of an unseen class takes part in the softmax", strength=1.0, start_round=0)
class ZeroAnchor(FedFM):
    """Every class has a logit."""

    def loss(self, batch: Batch, held: Tree) -> Tensor:
        """All classes seen by the softmax."""
        features = F.normalize(batch.features, dim=-1)
        everything = torch.ones_like(held["seen"])
        each = contrastive_guiding(
            features, batch.labels, held["anchors"], everything, self.temperature
        )
        return self.mean_loss(each, batch.labels, held["seen"])


@plant("an absent class divides 0 by 0", strength=1.0, start_round=0)
class ZeroByZero(FedFM):
    """The anchor of an absent class is NaN."""

    def absorb(self, server: Tree, total: Tree, clients: int) -> Tree:
        """Divide without looking."""
        anchors = total["sum"] / total["count"].unsqueeze(-1)
        return {"anchors": anchors, "seen": server["seen"] | (total["count"] > 0)}


@plant("a class absent from a round loses its anchor", strength=1.0, start_round=0)
class Loses(FedFM):
    """Only this round's classes have one."""

    def absorb(self, server: Tree, total: Tree, clients: int) -> Tree:
        """Begin anew in every round."""
        empty = {name: torch.zeros_like(leaf) for name, leaf in server.items()}
        return super().absorb(empty, total, clients)


@plant("weighted anchors are a plain mean over clients", strength=1.0, start_round=0)
class Unweighted(FedFM):
    """Every holder of a class counts alike."""

    def report(self, statistic: Tree) -> Tree:
        """Means with a count of one."""
        means = statistic["sum"] / statistic["count"].clamp(min=1).unsqueeze(-1)
        return {"sum": means, "count": statistic["count"].clamp(max=1)}


@plant("features are not normalised", strength=1.0, start_round=0)
class RawFeatures(FedFM):
    """Inner products instead of cosines."""

    def loss(self, batch: Batch, held: Tree) -> Tensor:
        """Contrastive guiding of raw features."""
        anchors, seen = held["anchors"], held["seen"]
        each = contrastive_guiding(batch.features, batch.labels, anchors, seen, self.temperature)
        return self.mean_loss(each, batch.labels, seen)


@plant("anchors are normalised before they are averaged", strength=1.0, start_round=0)
class EarlyUnit(FedFM):
    """The mean of unit features, which long features no longer dominate."""

    def statistic(self, batch: Batch) -> Tree:
        """Sums of unit features."""
        return super().statistic(batch._replace(features=F.normalize(batch.features, dim=-1)))


@plant("L2 guiding is averaged over the d coordinates", strength=1.0, start_round=0, guide="l2")
class MeanGuiding(FedFM):
    """Weaker by a factor of d."""

    def loss(self, batch: Batch, held: Tree) -> Tensor:
        """Divided by d."""
        return super().loss(batch, held) / batch.features.shape[-1]


@plant("matching begins a round before T_s", strength=1.0, start_round=2)
class Early(FedFM):
    """T_s counts from 1."""

    @property
    def first_round(self) -> int:
        """One round too early."""
        return self.start_round - 1


@plant(
    "the first anchors are taken in round T_s instead of the one before",
    strength=1.0,
    start_round=2,
)
class Late(FedFMLite):
    """Matching begins a round after T_s."""

    @property
    def first_round(self) -> int:
        """FedFM's."""
        return self.start_round


@plant("samples without an anchor count in the mean", strength=1.0, start_round=0)
class AllSamples(FedFMLite):
    """Divides by the batch's size."""

    def mean_loss(self, each: Tensor, labels: Tensor, seen: Tensor) -> Tensor:
        """Zeros for samples without an anchor."""
        taking_part = seen.expand(len(labels), -1).gather(-1, labels)
        return self.strength * each.masked_fill(~taking_part, 0.0).mean(-1)


@plant("anchors are taken before training instead of after", strength=1.0, start_round=0)
class TooEarly(FedFMLite):
    """FedFM's two handshakes under the name of Lite."""

    measures = "before"


@plant(
    "a client without the class counts as a zero anchor",
    strength=1.0,
    start_round=0,
    anchors="uniform",
)
class ZeroShare(FedFMLite):
    """The plain mean runs over clients that have nothing to say."""

    def absorb(self, server: Tree, total: Tree, clients: int) -> Tree:
        """The sum of the means divided by S."""
        held = total["holders"] > 0
        new = torch.where(held.unsqueeze(-1), total["mean"] / clients, server["anchors"])
        return {"anchors": new, "seen": server["seen"] | held}
