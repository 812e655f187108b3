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

from fedfm.algorithms.base import Batch, Model, Piece, Task
from fedfm.core.errors import require
from fedfm.core.trees import Tree


def contrastive_guiding(
    features: Tensor, labels: Tensor, anchors: Tensor, seen: Tensor, temperature: float
) -> Tensor:
    """The CG loss of each sample: -log softmax_c(<a_n, f> / alpha), over the seen classes n.

    Unit features [S, B, d], labels [S, B], unit anchors [S or 1, C, d], seen [S or 1, C] -> [S, B].
    """
    logits = features @ anchors.mT / temperature
    logits = logits.masked_fill(~seen.unsqueeze(-2), torch.finfo(logits.dtype).min)
    picked = logits.log_softmax(-1).gather(-1, labels.unsqueeze(-1))
    return -picked.squeeze(-1)


def l2_guiding(features: Tensor, labels: Tensor, anchors: Tensor) -> Tensor:
    """The L2 loss of each sample (Eq. 3): ||f - a_c||^2, shapes as in `contrastive_guiding`."""
    index = labels.unsqueeze(-1).expand(-1, -1, features.shape[-1])
    own = anchors.expand(len(labels), -1, -1).gather(1, index)
    return (features - own).square().sum(-1)


def mean_over(values: Tensor, chosen: Tensor) -> Tensor:
    """The mean of values [S, B] over the chosen ones [S, B]; 0 for a client with none -> [S]."""
    kept = torch.where(chosen, values, torch.zeros_like(values))
    return kept.sum(-1) / chosen.sum(-1).clamp(min=1)


@dataclass(frozen=True)
class FedFM(Piece):
    """FedFM with anchors taken before local training: two handshakes a round (Algorithm 1)."""

    name = "fedfm"
    claims: ClassVar[frozenset[str]] = frozenset({"anchors"})
    measures: ClassVar[Literal["before", "after"] | None] = "before"

    strength: float = 50.0
    """lambda, the weight of the matching loss."""
    temperature: float = 0.1
    """alpha, of contrastive guiding."""
    guide: Literal["cg", "l2"] = "cg"
    """Contrastive guiding, or the squared distance to the own anchor."""
    anchors: Literal["weighted", "uniform"] = "weighted"
    """Weighted by class counts (Eq. 9), or a plain mean over clients that sends no counts."""
    start_round: int = 20
    """T_s: plain averaging for so many rounds, then matching."""

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        require(self.strength >= 0, f"{self.name}: strength must be >= 0, not {self.strength}")
        require(self.temperature > 0, f"{self.name}: temperature must be > 0")
        require(self.guide in ("cg", "l2"), f"{self.name}: guide is 'cg' or 'l2'")
        require(
            self.anchors in ("weighted", "uniform"),
            f"{self.name}: anchors are 'weighted' or 'uniform'",
        )
        require(self.start_round >= 0, f"{self.name}: start_round must be >= 0")

    @property
    def first_round(self) -> int:
        """Matching starts at T_s."""
        return self.start_round

    def server_state(self, task: Task) -> Tree:
        """Global anchors [C, d] and which classes have one [C]."""
        like = next(iter(task.params.values()))
        return {
            "anchors": like.new_zeros(task.classes, task.features),
            "seen": torch.zeros(task.classes, dtype=torch.bool, device=like.device),
        }

    def statistic(self, batch: Batch) -> Tree:
        """Class sums [S, C, d] and counts [S, C] of raw features (Eq. 8)."""
        classes = batch.logits.shape[-1]
        own = torch.arange(classes, device=batch.labels.device) == batch.labels.unsqueeze(-1)
        own = own & batch.mask.unsqueeze(-1)
        return {"sum": own.mT.to(batch.features.dtype) @ batch.features, "count": own.sum(-2)}

    def report(self, statistic: Tree) -> Tree:
        """Weighted: sums and counts. Uniform: local anchors, and which classes there are any of."""
        if self.anchors == "weighted":
            return statistic
        counts = statistic["count"]
        means = statistic["sum"] / counts.clamp(min=1).unsqueeze(-1)
        return {"mean": means, "holders": (counts > 0).to(torch.uint8)}

    def absorb(self, server: Tree, total: Tree, clients: int) -> Tree:
        """The new global anchors (Eq. 9); a class that nobody holds keeps its previous anchor."""
        old, seen = server["anchors"], server["seen"]
        if self.anchors == "weighted":
            number = total["count"]
            new = total["sum"] / number.clamp(min=1).unsqueeze(-1)
        else:
            number = total["holders"]
            absent = torch.where(seen, clients - number, torch.zeros_like(number))
            shares = (number + absent).clamp(min=1).unsqueeze(-1)
            new = (total["mean"] + absent.unsqueeze(-1) * old) / shares
        held = number > 0
        return {"anchors": torch.where(held.unsqueeze(-1), new, old), "seen": seen | held}

    def download(self, server: Tree) -> Tree:
        """Every client receives the global anchors."""
        return server

    def prepare(self, client: Tree, start: Model, down: Tree) -> Tree:
        """The anchors at unit length: they are normalised inside the loss only."""
        return {"anchors": F.normalize(down["anchors"], dim=-1), "seen": down["seen"]}

    def loss(self, batch: Batch, held: Tree) -> Tensor:
        """Lambda times the guiding loss over the samples whose class has an anchor."""
        features = F.normalize(batch.features, dim=-1)
        anchors, seen = held["anchors"], held["seen"]
        if self.guide == "cg":
            each = contrastive_guiding(features, batch.labels, anchors, seen, self.temperature)
        else:
            each = l2_guiding(features, batch.labels, anchors)
        taking_part = seen.expand(len(batch.labels), -1).gather(-1, batch.labels)
        return self.strength * mean_over(each, taking_part)


@dataclass(frozen=True)
class FedFMLite(FedFM):
    """FedFM-Lite: anchors taken after training and sent with the model, in one handshake."""

    name = "fedfm-lite"
    measures: ClassVar[Literal["before", "after"] | None] = "after"

    models_every: int = 1
    """a: models travel every so many rounds, anchors every round."""

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        super().__post_init__()
        require(self.models_every >= 1, f"{self.name}: models_every must be >= 1")

    @property
    def share_every(self) -> int:
        """Models travel every a rounds."""
        return self.models_every

    @property
    def first_round(self) -> int:
        """One round before T_s: the anchors that round T_s needs are taken then."""
        return max(0, self.start_round - 1)
