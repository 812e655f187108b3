"""FedBN: batch-norm layers stay at the clients.

X. Li, M. Jiang, X. Zhang, M. Kamp, Q. Dou. FedBN: Federated Learning on Non-IID Features via Local
Batch Normalization. ICLR 2021 (Sec. 3).
"""

from dataclasses import dataclass

from fedfm.core.errors import require
from fedfm.methods.base import Piece, Task


@dataclass(frozen=True)
class FedBN(Piece):
    """Every client keeps its batch-norm layers, weights and statistics; the rest is averaged.

    Examples:
        >>> from fedfm import FedFM, compose
        >>> compose([FedBN(), FedFM()]).keeps_models
        True
    """

    name = "fedbn"

    def check(self, task: Task) -> None:
        """Refuse a network without batch norm."""
        require(
            len(task.norms) > 0,
            "fedbn: the network has no batch norm, so nothing would stay at the clients: choose a "
            "model with norm = 'batch', or another method",
        )

    def personal(self, task: Task) -> frozenset[str]:
        """Return the weights and statistics of all batch-norm layers."""
        return task.norms
