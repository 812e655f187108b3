"""Mistakes in FedFM's options after FedSA: moving averages, margin, calibration."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fedfm.core.trees import Tree
from fedfm.methods import Batch, FedFM, FedFMLite, Model
from fedfm.methods.fedfm import to_unit_length
from fedfm.verify.mistakes.planting import plant

MATCHING: dict[str, Any] = {"strength": 1.0, "start_round": 0}
MARGIN, MOVING = MATCHING | {"margin": 0.2}, MATCHING | {"moving_average": 0.3}
CALIBRATED = MATCHING | {"calibration": 0.7}


@plant("the moving average's weights are exchanged", **MOVING)
class ExchangedWeights(FedFM):
    """The share of the old anchors is 1 - m."""

    def absorb(self, server: Tree, total: Tree, clients: int) -> Tree:
        plain = super().absorb(server, total, clients)["anchors"]
        fresh = FedFM(**MATCHING).absorb(server, total, clients)
        mirrored = fresh["anchors"] + server["anchors"] - plain
        known = server["seen"].unsqueeze(-1)
        return fresh | {"anchors": torch.where(known, mirrored, plain)}


@plant("the first anchor of a class is averaged with a zero vector", **MOVING)
class FromZero(FedFM):
    """Anchors are too short until old values have faded."""

    def absorb(self, server: Tree, total: Tree, clients: int) -> Tree:
        everything = server | {"seen": torch.ones_like(server["seen"])}
        moved = super().absorb(everything, total, clients)
        return moved | {"seen": server["seen"] | (total["count"] > 0)}


@plant("averages are of anchors at unit length", **MOVING)
class UnitAverages(FedFMLite):
    """Long class means have no more weight than short ones."""

    def absorb(self, server: Tree, total: Tree, clients: int) -> Tree:
        moved = super().absorb(server, total, clients)
        return moved | {"anchors": F.normalize(moved["anchors"], dim=-1)}


def guide(self: FedFM, batch: Batch, held: Tree, shift: Tensor) -> Tensor:
    """Return the contrastive loss [S] with a shift [S, B, C] of the similarities."""
    cosines = to_unit_length(batch.features) @ held["anchors"].mT
    logits = (cosines + shift) / self.temperature
    logits = logits.masked_fill(~held["seen"].unsqueeze(-2), torch.finfo(logits.dtype).min)
    losses = F.cross_entropy(logits.movedim(-1, 1), batch.labels, reduction="none")
    return self.mean_loss(losses, batch.labels, held["seen"])


def own_classes(batch: Batch) -> Tensor:
    """Return 1 for the class of each sample and 0 for the others [S, B, C]."""
    return F.one_hot(batch.labels, batch.logits.shape[-1]).to(batch.features.dtype)


@plant("the margin is subtracted from the other classes", **MARGIN)
class OtherClasses(FedFM):
    """The task becomes easier instead of harder."""

    def loss(self, batch: Batch, held: Tree) -> Tensor:
        return guide(self, batch, held, -self.margin * (1 - own_classes(batch)))


@plant("the margin is not divided by the temperature", **MARGIN)
class WarmMargin(FedFM):
    """It is too small by a factor of alpha."""

    def loss(self, batch: Batch, held: Tree) -> Tensor:
        shift = -self.margin * self.temperature * own_classes(batch)
        return guide(self, batch, held, shift)


@plant("the calibration's gradient reaches the body", **CALIBRATED)
class ReachesBody(FedFM):
    """Features of the batch take the place of the anchors of their classes."""

    def loss(self, batch: Batch, held: Tree) -> Tensor:
        one_hot = own_classes(batch)
        counts = one_hot.sum(1).unsqueeze(-1)
        present = one_hot.mT @ batch.features / counts.clamp(min=1)
        means = held["means"] + torch.where(counts > 0, present - present.detach(), 0.0)
        return super().loss(batch, held | {"means": means})


@plant("the head is calibrated on anchors at unit length", **CALIBRATED)
class UnitInputs(FedFM):
    """It sees other inputs than the features."""

    def prepare(self, client: Tree, received: Model, down: Tree) -> Tree:
        held = super().prepare(client, received, down)
        return held | {"means": held["anchors"]}


@plant("the zero vector of an unseen class is an input of the calibration", **CALIBRATED)
class ZeroInputs(FedFMLite):
    """The bias of the unseen class grows."""

    def _calibrate(self, batch: Batch, held: Tree) -> Tensor:
        everything = held | {"seen": torch.ones_like(held["seen"])}
        return super()._calibrate(batch, everything)


@plant("the warm-up multiplies the calibration, too", **CALIBRATED, warm_up=3)
class WarmsHead(FedFM):
    """The calibration begins with a third of its weight."""

    def _calibrate(self, batch: Batch, held: Tree) -> Tensor:
        share: Tensor = held["share"]
        return super()._calibrate(batch, held) * share
