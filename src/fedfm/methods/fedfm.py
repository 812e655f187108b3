"""Feature matching: FedFM and FedFM-Lite.

R. Ye, Z. Ni, C. Xu, J. Wang, S. Chen, Y. C. Eldar. FedFM: Anchor-based Feature Matching for Data
Heterogeneity in Federated Learning. IEEE Transactions on Signal Processing, 2023.

Clients send class-wise feature means, the server averages them into anchors a_c, and every client
pulls its features towards them:  min  sum_k p_k [F_k(w) + lambda Q_k(w; A)].
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedfm.core.errors import require
from fedfm.core.trees import Tree
from fedfm.methods.anchors import Anchored
from fedfm.methods.base import Batch, Model


def to_unit_length(features: Tensor) -> Tensor:
    """Scale features [..., d] to unit length, by an RMS norm, which is one kernel on a GPU."""
    size = features.shape[-1]
    scale = features.new_full((size,), size**-0.5)
    return F.rms_norm(features, (size,), scale, eps=1e-24)


def contrastive_guiding(
    features: Tensor, labels: Tensor, anchors: Tensor, seen: Tensor, temperature: float
) -> Tensor:
    """Return the CG loss of each sample: -log softmax_c(<a_n, f> / alpha), over seen classes n.

    Unit features [S, B, d], labels [S, B], unit anchors [S or 1, C, d], seen [S or 1, C] -> [S, B].
    """
    logits = features @ (anchors.mT / temperature)
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

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        super().__post_init__()
        require(self.temperature > 0, f"{self.name}: temperature must be > 0")
        require(self.guide in ("cg", "l2"), f"{self.name}: guide must be 'cg' or 'l2'")

    def prepare(self, client: Tree, received: Model, down: Tree) -> Tree:
        """Return the anchors at unit length; they are normalised for the loss only."""
        return {"anchors": F.normalize(down["anchors"], dim=-1), "seen": down["seen"]}

    def loss(self, batch: Batch, held: Tree) -> Tensor:
        """Return the guiding loss of unit features (Sec. IV-C)."""
        features = to_unit_length(batch.features)
        anchors, seen = held["anchors"], held["seen"]
        if self.guide == "cg":
            losses = contrastive_guiding(features, batch.labels, anchors, seen, self.temperature)
        else:
            losses = l2_guiding(features, batch.labels, anchors)
        return self.mean_loss(losses, batch.labels, seen)


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
