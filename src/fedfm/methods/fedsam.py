"""FedSAM and MoFedSAM: steps with the gradient at the worst point nearby.

Z. Qu, X. Li, R. Duan, Y. Liu, B. Tang, Z. Lu. Generalized Federated Learning via Sharpness Aware
Minimization. ICML 2022 (Algorithms 1 and 2; from memory, there is no official code).
D. Caldarola, B. Caputo, M. Ciccone. Improving Generalization in Federated Learning by Seeking Flat
Minima. ECCV 2022, arXiv 2203.11834 (the adaptive form, ASAM).

With g the gradient of a client's whole local loss at y, over all of its parameters:

e = radius g / ||g||, or with T = |y| + eta for ASAM: e = radius T^2 g / ||T g||
y takes a step with the gradient at y + e.

Weight decay and corrections by other pieces are no part of g. Running statistics of batch norm are
updated at y only, and both passes drop the same activations.
"""

from dataclasses import dataclass

from fedfm.core.errors import require
from fedfm.core.trees import Tree, client_norms, per_client, tree_map
from fedfm.methods.base import Piece
from fedfm.methods.fedcm import FedCM

LEAST = 1e-12
"""The least norm to divide by."""


def ascend(grads: Tree, params: Tree, radius: float, adaptive: float = 0.0) -> Tree:
    """Return the offset e [S, ...] of each client; `adaptive` is eta, 0 without ASAM."""
    if adaptive:
        sizes = tree_map(lambda w: w.abs() + adaptive, params)
        grads = tree_map(lambda t, g: t * g, sizes, grads)
    scale = radius / client_norms(grads).clamp(min=LEAST)
    offset = tree_map(lambda g: g * per_client(scale, g), grads)
    return tree_map(lambda t, e: t * e, sizes, offset) if adaptive else offset


def check_ascent(name: str, radius: float, adaptive: float = 0.0) -> None:
    """Refuse values outside their range."""
    require(radius >= 0, f"{name}: radius must be >= 0, not {radius}")
    require(adaptive >= 0, f"{name}: adaptive must be >= 0, not {adaptive}")


@dataclass(frozen=True)
class FedSAM(Piece):
    """Sharpness-aware local steps: the gradient at y + radius g / ||g||.

    Models are averaged as in FedAvg.

    Examples:
        >>> from fedfm import FedFM, compose
        >>> compose([FedSAM(radius=0.05), FedFM()]).name
        'fedsam+fedfm'
    """

    name = "fedsam"
    step_cost = 2.1

    radius: float = 0.1
    """The length of the ascent."""
    adaptive: float = 0.0
    """eta of ASAM; 0: plain SAM. Caldarola et al. use 0.2, with a radius of 0.7."""

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        super().__post_init__()
        check_ascent(self.name, self.radius, self.adaptive)

    def perturb(self, grads: Tree, params: Tree, held: Tree) -> Tree:
        """Return e."""
        return ascend(grads, params, self.radius, self.adaptive)


@dataclass(frozen=True)
class MoFedSAM(FedCM):
    """FedSAM with client-level momentum: alpha (gradient at y + e) + (1 - alpha) V.

    V is FedCM's. So it equals FedCM and FedSAM composed, and FedCM for radius 0.

    Examples:
        >>> MoFedSAM(radius=0.05).alpha
        0.1
    """

    name = "mofedsam"
    step_cost = 2.1

    radius: float = 0.1
    """The length of the ascent."""
    adaptive: float = 0.0
    """eta of ASAM; 0: plain SAM."""

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        super().__post_init__()
        check_ascent(self.name, self.radius, self.adaptive)

    def perturb(self, grads: Tree, params: Tree, held: Tree) -> Tree:
        """Return e."""
        return ascend(grads, params, self.radius, self.adaptive)
