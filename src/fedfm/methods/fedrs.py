"""FedRS: a restricted softmax for the classes that a client lacks.

X.-C. Li, D.-C. Zhan. FedRS: Federated Learning with Restricted Softmax for Label Distribution
Non-IID Data. KDD 2021 (from memory).
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedfm.core.errors import require
from fedfm.core.trees import Tree
from fedfm.methods.base import Batch, Piece


@dataclass(frozen=True)
class FedRS(Piece):
    """Logits alpha f_c for a class that the client lacks, f_c for the others, in training only.

    This is the paper's form, on the network's logits. With `graded = true` the factors are those of
    the authors' code, alpha + (1 - alpha) n_ic / max_k n_ik with the client's class counts n_ic;
    its head has no bias, so give your network none to have its logits, too.

    Examples:
        >>> from fedfm import FedFM, compose
        >>> compose([FedRS(alpha=0.9), FedFM()]).name
        'fedrs+fedfm'
    """

    name = "fedrs"
    claims: ClassVar[frozenset[str]] = frozenset({"logits"})

    alpha: float = 0.5
    """The factor for classes that a client lacks; 1 is FedAvg."""
    graded: bool = False
    """Whether factors grow with the client's class counts (the authors' code)."""

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        super().__post_init__()
        require(0 <= self.alpha <= 1, f"fedrs: alpha must be in [0, 1], not {self.alpha}")

    def use_counts(self, counts: Tensor) -> Tree:
        """Return the factors of the logits [S, C]."""
        if self.graded:
            share = counts / counts.amax(1, keepdim=True)
            return {"scale": self.alpha + (1 - self.alpha) * share}
        return {"scale": torch.where(counts > 0, torch.ones_like(counts), self.alpha)}

    def adjust_logits(self, batch: Batch, held: Tree) -> Tensor:
        """Return the restricted logits [S, B, C]."""
        scale: Tensor = held["scale"]
        return batch.logits * scale.unsqueeze(1)
