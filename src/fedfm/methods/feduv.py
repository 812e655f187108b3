"""FedUV: predictions that vary over a batch as if classes were balanced, and features that spread.

H. M. Son, M.-H. Kim, T.-M. Chung, C. Huang, X. Liu. FedUV: Uniformity and Variance for
Heterogeneous Federated Learning. CVPR 2024 (the settings, and C / 4 for the first, are from
memory; the equations are those of the authors' code).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedfm.core.errors import require
from fedfm.core.trees import Tree
from fedfm.methods.base import Batch, Piece


def lack_of_variance(logits: Tensor) -> Tensor:
    """Return mean_c relu(C^(-1/2) - std p_c) of softmax p over a batch: [S, B, C] -> [S]."""
    deviation = logits.softmax(-1).std(1)
    missing: Tensor = (logits.shape[-1] ** -0.5 - deviation).relu()
    return missing.mean(-1)


def lack_of_uniformity(features: Tensor, fixed_width: bool = False) -> Tensor:
    """Return the mean of exp(-||f_i - f_j||^2 / m) over pairs i != j: [S, B, d] -> [S].

    m is the median of the squared distances that are not 0, and depends on the features, too,
    unless it is fixed: then it has no gradient.
    """
    size = features.shape[1]
    exact = "donot_use_mm_for_euclid_dist"
    squares = torch.cdist(features, features, compute_mode=exact).square().flatten(1)
    with torch.no_grad():
        apart = squares > 0
        order = squares.masked_fill(~apart, torch.inf).argsort(1)
        count = apart.sum(1, keepdim=True)
        place = order.gather(1, ((count - 1) // 2).clamp(min=0))
    middle = squares.gather(1, place)
    middle = middle.detach() if fixed_width else middle
    median = torch.where(count > 0, middle, torch.ones_like(middle))
    return ((-squares / median).exp().sum(1) - size) / (size * (size - 1))


@dataclass(frozen=True)
class FedUV(Piece):
    """+ a mean_c relu(C^(-1/2) - std p_c) + b mean over pairs of exp(-||f_i - f_j||^2 / median).

    Both are over a client's batch: p are its softmax outputs, f its features. A batch of one class
    distorts both, for it is pushed to predict classes that it does not have, and features of one
    class apart. A batch of one sample is left out.

    The default is the authors' code, in which the median has a gradient, too; `fixed_width = true`
    takes it for a number, as the width of a kernel usually is.

    Examples:
        >>> from fedfm import FedFM, compose
        >>> compose([FedUV(variance=1.0), FedFM()]).name
        'feduv+fedfm'
    """

    name = "feduv"
    step_cost = 1.1

    variance: float = 2.5
    """a, the weight of the first term; C / 4 for ten classes."""
    uniformity: float = 0.5
    """b, the weight of the second term."""
    fixed_width: bool = False
    """Whether the median is a number, without a gradient."""

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        super().__post_init__()
        require(self.variance >= 0, f"feduv: variance must be >= 0, not {self.variance}")
        require(self.uniformity >= 0, f"feduv: uniformity must be >= 0, not {self.uniformity}")

    def loss(self, batch: Batch, held: Tree) -> Tensor | None:
        """Return both terms [S]."""
        if batch.features.shape[1] < 2:
            return None
        variance = self.variance * lack_of_variance(batch.logits)
        crowding = lack_of_uniformity(batch.features, self.fixed_width)
        return variance + self.uniformity * crowding
