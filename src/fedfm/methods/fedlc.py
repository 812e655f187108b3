"""FedLC: logits calibrated by the client's own class counts.

J. Zhang, Z. Li, B. Li, J. Xu, S. Wu, S. Ding, C. Wu. Federated Learning with Label Distribution
Skew via Logits Calibration. ICML 2022 (Eq. 5; the form of its denominator is from memory).
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedfm.core.errors import require
from fedfm.core.trees import Tree
from fedfm.methods.base import Batch, Piece


@dataclass(frozen=True)
class FedLC(Piece):
    """Cross-entropy of logits lowered for rare classes: z_c = f_c - tau n_ic^(-1/4).

    The loss is -log(exp z_y / sum over c != y of exp z_c). This form of the paper has no lower
    bound, and its gradient does not fade as a client fits its samples, so that training diverges
    unless lr is small or gradients are clipped. With `exclude_true = false` the sum is over all
    classes, as in the code of other papers that compare with FedLC. n_ic are the counts of the
    client's own training samples. A class that it lacks takes no part, so a client with one class
    alone learns nothing.

    Examples:
        >>> from fedfm import FedFM, compose
        >>> compose([FedLC(strength=0.5), FedFM()]).name
        'fedlc+fedfm'
    """

    name = "fedlc"
    claims: ClassVar[frozenset[str]] = frozenset({"logits"})
    drops_classes: ClassVar[bool] = True

    strength: float = 1.0
    """tau, the weight of the calibration."""
    exclude_true: bool = True
    """Whether the sum leaves out the true class (the paper)."""

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        super().__post_init__()
        require(self.strength >= 0, f"fedlc: strength must be >= 0, not {self.strength}")
        require(
            self.strength > 0 or not self.exclude_true,
            "fedlc: strength = 0 calibrates nothing: use exclude_true = false with it, or fedavg",
        )

    def use_counts(self, counts: Tensor) -> Tree:
        """Return tau n_ic^(-1/4) [S, C], infinite for a class that a client lacks."""
        return {"shift": self.strength * counts**-0.25 if self.strength else 0 * counts}

    def adjust_logits(self, batch: Batch, held: Tree) -> Tensor:
        """Return the calibrated logits z [S, B, C]."""
        shift: Tensor = held["shift"]
        return batch.logits - shift.unsqueeze(1)

    def loss(self, batch: Batch, held: Tree) -> Tensor | None:
        """Return what leaving out the true class adds: the mean of log(1 - softmax(z)_y)."""
        if not self.exclude_true:
            return None
        logits = self.adjust_logits(batch, held)
        true = torch.arange(logits.shape[-1], device=logits.device) == batch.labels.unsqueeze(-1)
        lowest = torch.finfo(logits.dtype).min
        finite = logits.clamp(min=lowest / 2)
        others = finite.masked_fill(true, lowest).logsumexp(-1)
        has_others = (others > lowest / 2).detach()
        change = others - finite.logsumexp(-1)
        return torch.where(has_others, change, torch.zeros_like(change)).mean(-1)
