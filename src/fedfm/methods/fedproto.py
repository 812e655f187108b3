"""FedProto, generalised: prototypes guide the features of one global model.

Y. Tan, G. Long, L. Liu, T. Zhou, Q. Lu, J. Jiang, C. Zhang. FedProto: Federated Prototype Learning
across Heterogeneous Clients. AAAI 2022 (Eq. 7). The FedFM paper compares with this form of it, in
which models are averaged too.
"""

from dataclasses import dataclass

from torch import Tensor

from fedfm.core.trees import Tree
from fedfm.methods.anchors import Anchored
from fedfm.methods.base import Batch, Model
from fedfm.methods.fedfm import l2_guiding


@dataclass(frozen=True)
class FedProto(Anchored):
    """Features pulled to class prototypes: + lambda mean ||f - a_c||^2.

    Features and prototypes are raw, not normalised.

    Examples:
        >>> FedProto(strength=0.1).first_round
        0
    """

    name = "fedproto"

    def prepare(self, client: Tree, received: Model, down: Tree) -> Tree:
        """Return the prototypes."""
        return down

    def loss(self, batch: Batch, held: Tree) -> Tensor:
        """Return the mean squared distance of raw features to their prototypes."""
        losses = l2_guiding(batch.features, batch.labels, held["anchors"])
        return self.mean_loss(losses, batch.labels, held["seen"])
