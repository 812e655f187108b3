"""Feature matching: FedFM and FedFM-Lite.

R. Ye, Z. Ni, C. Xu, J. Wang, S. Chen, Y. C. Eldar. FedFM: Anchor-based Feature Matching for Data
Heterogeneity in Federated Learning. IEEE Transactions on Signal Processing, 2023.

Clients send class-wise feature means, the server averages them into anchors a_c, and every client
pulls its features towards them:  min  sum_k p_k [F_k(w) + lambda Q_k(w; A)].

Three options are from Y. Zhou, X. Qu, C. You, J. Zhou, J. Tang, X. Zheng, C. Cai, Y. Wu. FedSA: A
Unified Representation Learning via Semantic Anchors for Prototype-based Federated Learning. AAAI
2025 (from memory): anchors as moving averages, a margin (there from the distances between anchors,
here a number), and the calibration of the head by anchors.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedfm.core.errors import require
from fedfm.core.trees import Tree
from fedfm.methods.anchors import Anchored, masked_mean
from fedfm.methods.base import Batch, Model, Task


def to_unit_length(features: Tensor) -> Tensor:
    """Scale features [..., d] to unit length, by an RMS norm, which is one kernel on a GPU."""
    size = features.shape[-1]
    scale = features.new_full((size,), size**-0.5)
    return F.rms_norm(features, (size,), scale, eps=1e-24)


def contrastive_guiding(
    features: Tensor,
    labels: Tensor,
    anchors: Tensor,
    seen: Tensor,
    temperature: float,
    margin: float = 0.0,
) -> Tensor:
    """Return the CG loss of each sample: -log softmax_c(<a_n, f> / alpha), over seen classes n.

    Unit features [S, B, d], labels [S, B], unit anchors [S or 1, C, d], seen [S or 1, C] -> [S, B].
    A margin is subtracted from the similarity to the anchor of the sample's own class.
    """
    logits = features @ (anchors.mT / temperature)
    if margin:
        own_class = torch.arange(logits.shape[-1], device=labels.device) == labels.unsqueeze(-1)
        logits = logits - own_class * (margin / temperature)
    logits = logits.masked_fill(~seen.unsqueeze(-2), torch.finfo(logits.dtype).min)
    losses = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
    return losses.view(labels.shape)


def l2_guiding(features: Tensor, labels: Tensor, anchors: Tensor) -> Tensor:
    """Return the L2 loss of each sample (Eq. 3), ||f - a_c||^2; shapes as above."""
    index = labels.unsqueeze(-1).expand(-1, -1, features.shape[-1])
    targets = anchors.expand(len(labels), -1, -1).gather(1, index)
    return (features - targets).square().sum(-1)


@dataclass(frozen=True)
class FedFM(Anchored):
    """FedFM with anchors taken before local training: two handshakes a round (Algorithm 1).

    Examples:
        >>> from fedfm import Training, simulate
        >>> few = Training(clients=3, rounds=2, epochs=1)
        >>> method = FedFM(strength=1.0, start_round=1)
        >>> result = simulate("mlp", "digits", method, training=few, executor="loop")
        >>> [record.handshakes for record in result.rounds]  # anchors from the second round on
        [1, 2]
    """

    name = "fedfm"
    step_cost = 1.1

    strength: float = 50.0
    """lambda, the weight of the loss; 50 suits a ResNet with batch norm."""
    start_round: int = 20
    """T_s: the number of rounds of plain averaging before the loss starts."""
    temperature: float = 0.1
    """alpha, of contrastive guiding."""
    guide: Literal["cg", "l2"] = "cg"
    """Contrastive guiding, or the squared distance to the anchor of the sample's class."""
    warm_up: int = 0
    """The rounds over which lambda grows linearly to its value; 0: it has it from T_s on."""
    moving_average: float = 0.0
    """m: new anchors are m times the old ones plus 1 - m times the class means (FedSA)."""
    margin: float = 0.0
    """Subtracted from the similarity to a sample's own anchor, in contrastive guiding (FedSA)."""
    calibration: float = 0.0
    """The weight of the cross-entropy of the head on the anchors as inputs, which lambda does not
    multiply (FedSA)."""

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        super().__post_init__()
        require(self.temperature > 0, f"{self.name}: temperature must be > 0")
        require(self.guide in ("cg", "l2"), f"{self.name}: guide must be 'cg' or 'l2'")
        require(self.warm_up >= 0, f"{self.name}: warm_up must be >= 0, not {self.warm_up}")
        require(0 <= self.moving_average < 1, f"{self.name}: moving_average must be in [0, 1)")
        require(self.margin >= 0, f"{self.name}: margin must be >= 0, not {self.margin}")
        require(
            self.margin == 0 or self.guide == "cg",
            f"{self.name}: margin is a setting of guide = 'cg', not of '{self.guide}'",
        )
        require(self.calibration >= 0, f"{self.name}: calibration must be >= 0")

    def check(self, task: Task) -> None:
        """Refuse to calibrate a head that is not known."""
        require(
            self.calibration == 0 or len(task.head) > 0,
            f"{self.name}: calibration needs the network's head: wrap the network by "
            "WithFeatures(network, head=...), or give its class an attribute head_name",
        )

    def server_state(self, task: Task) -> Tree:
        """Return no anchors, and for a warm-up that there were none in any round."""
        anchors = super().server_state(task)
        if not self.warm_up:
            return anchors
        return anchors | {"rounds": torch.zeros((), dtype=torch.int64, device=task.device)}

    def absorb(self, server: Tree, total: Tree, clients: int) -> Tree:
        """Return the new anchors, averaged with the old ones if asked for; count the round."""
        new = super().absorb(server, total, clients)
        if self.moving_average:
            mixed = torch.lerp(new["anchors"], server["anchors"], self.moving_average)
            known = server["seen"].unsqueeze(-1)
            new["anchors"] = torch.where(known, mixed, new["anchors"])
        return new | ({"rounds": server["rounds"] + 1} if self.warm_up else {})

    def prepare(self, client: Tree, received: Model, down: Tree) -> Tree:
        """Return the anchors at unit length; they are normalised for the loss only."""
        held = {"anchors": F.normalize(down["anchors"], dim=-1), "seen": down["seen"]}
        if self.warm_up:
            share = down["rounds"].to(down["anchors"].dtype) / self.warm_up
            held["share"] = share.clamp(max=1)
        return held | ({"means": down["anchors"]} if self.calibration else {})

    def loss(self, batch: Batch, held: Tree) -> Tensor:
        """Return the guiding loss of unit features (Sec. IV-C), and that of the calibration."""
        features = to_unit_length(batch.features)
        anchors, seen = held["anchors"], held["seen"]
        if self.guide == "cg":
            how = self.temperature, self.margin
            losses = contrastive_guiding(features, batch.labels, anchors, seen, *how)
        else:
            losses = l2_guiding(features, batch.labels, anchors)
        loss = self.mean_loss(losses, batch.labels, seen)
        loss = loss * held["share"] if self.warm_up else loss
        return loss + self._calibrate(batch, held) if self.calibration else loss

    def _calibrate(self, batch: Batch, held: Tree) -> Tensor:
        """Return the weighted mean cross-entropy [S] of the anchors' logits and their classes."""
        surprise = -batch.classify(held["means"]).log_softmax(-1).diagonal(dim1=-2, dim2=-1)
        return self.calibration * masked_mean(surprise, held["seen"])


@dataclass(frozen=True)
class FedFMLite(FedFM):
    """FedFM-Lite: anchors taken after training and sent with the model, in one handshake.

    Examples:
        >>> FedFMLite(models_every=5).share_every
        5
    """

    name = "fedfm-lite"
    measures: ClassVar[Literal["before", "after"] | None] = "after"

    models_every: int = 1
    """a: models are exchanged every so many rounds, anchors every round."""

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        super().__post_init__()
        require(self.models_every >= 1, f"{self.name}: models_every must be >= 1")

    @property
    def share_every(self) -> int:
        """Models are exchanged every a rounds."""
        return self.models_every

    @property
    def first_round(self) -> int:
        """One round before T_s: the anchors that round T_s needs are taken then."""
        return max(0, self.start_round - 1)
