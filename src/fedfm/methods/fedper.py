"""FedPer: the last layer stays at the clients.

M. G. Arivazhagan, V. Aggarwal, A. K. Singh, S. Choudhary. Federated Learning with Personalization
Layers. arXiv 1912.00818, 2019 (Algorithms 1 and 2).
"""

from dataclasses import dataclass

from fedfm.core.errors import require
from fedfm.methods.base import Piece, Task


@dataclass(frozen=True)
class FedPer(Piece):
    """Every client keeps its head; the body is averaged. Both are trained together.

    Examples:
        >>> from fedfm import FedFM, compose
        >>> compose([FedPer(), FedFM()]).name
        'fedper+fedfm'
    """

    name = "fedper"

    def check(self, task: Task) -> None:
        """Refuse a network whose head is not known."""
        require(
            len(task.head) > 0,
            f"{self.name}: the network does not say which layer is its head: wrap it by "
            "WithFeatures(network, head=...), or give its class an attribute head_name",
        )

    def personal(self, task: Task) -> frozenset[str]:
        """Return the parameters of the head."""
        return task.head
