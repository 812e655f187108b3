"""FedDecorr: features whose dimensions are not correlated.

Y. Shi, J. Liang, W. Zhang, V. Y. F. Tan, S. Bai. Towards Understanding and Mitigating Dimensional
Collapse in Heterogeneous Federated Learning. ICLR 2023 (Eq. 5; from memory).
"""

from dataclasses import dataclass

from torch import Tensor

from fedfm.core.errors import require
from fedfm.core.trees import Tree
from fedfm.methods.base import Batch, Piece

TINY = 1e-12
"""Added to variances, so that a constant feature is not divided by zero."""


def correlate(features: Tensor) -> Tensor:
    """Return the correlations of features over a batch: [S, B, d] -> [S, d, d]; 0 if constant."""
    centred = features - features.mean(1, keepdim=True)
    variance = centred.square().mean(1, keepdim=True)
    standard = centred * (variance + TINY).rsqrt()
    return standard.mT @ standard / features.shape[1]


@dataclass(frozen=True)
class FedDecorr(Piece):
    """Against correlated features: + beta / d^2 times the sum of r_ij^2 over i != j.

    r_ij are the correlations of features over the client's batch. A batch of one sample has none
    and is left out.

    This is the paper's form. The authors' code has (B - 1)^2 / B times the mean of r_ij^2 over
    i != j, so it weighs the term about B times as much: `averaged = true`.

    Examples:
        >>> from fedfm import FedFM, compose
        >>> compose([FedDecorr(strength=0.1), FedFM()]).name
        'feddecorr+fedfm'
    """

    name = "feddecorr"
    step_cost = 1.1

    strength: float = 0.1
    """beta, the weight of the term; the authors' code, averaged, has 0.1 and 0.01."""
    averaged: bool = False
    """Whether the term is (B - 1)^2 / B times the mean of r_ij^2 (the authors' code)."""

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        super().__post_init__()
        require(self.strength >= 0, f"feddecorr: strength must be >= 0, not {self.strength}")

    def loss(self, batch: Batch, held: Tree) -> Tensor | None:
        """Return beta / d^2 times the sum of squared correlations [S]."""
        size, width = batch.features.shape[1:]
        if size < 2:
            return None
        squares = correlate(batch.features).square()
        off_diagonal = squares.sum((1, 2)) - squares.diagonal(dim1=1, dim2=2).sum(1)
        if self.averaged and width > 1:
            return self.strength * (size - 1) ** 2 / size * off_diagonal / (width * (width - 1))
        return self.strength * off_diagonal / width**2
