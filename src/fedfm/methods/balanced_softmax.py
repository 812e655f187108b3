"""Balanced softmax: logits shifted by the logarithm of the client's class counts.

J. Ren, C. Yu, S. Sheng, X. Ma, H. Zhao, S. Yi, H. Li. Balanced Meta-Softmax for Long-Tailed Visual
Recognition. NeurIPS 2020 (Eq. 3; from memory).
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedfm.core.trees import Tree
from fedfm.methods.base import Batch, Piece


@dataclass(frozen=True)
class BalancedSoftmax(Piece):
    """Cross-entropy of f_c + log n_ic, with the counts of the client's own training samples.

    A class that a client lacks takes no part in its loss. With a head of fixed class directions
    (`model.head = "simplex"`) this is FedETF.

    Examples:
        >>> from fedfm import FedFM, compose
        >>> compose([BalancedSoftmax(), FedFM()]).name
        'balancedsoftmax+fedfm'
    """

    name = "balancedsoftmax"
    claims: ClassVar[frozenset[str]] = frozenset({"logits"})
    drops_classes: ClassVar[bool] = True

    def use_counts(self, counts: Tensor) -> Tree:
        """Return log n_ic [S, C], -infinite for a class that a client lacks."""
        return {"shift": counts.log()}

    def adjust_logits(self, batch: Batch, held: Tree) -> Tensor:
        """Return the shifted logits [S, B, C]."""
        shift: Tensor = held["shift"]
        return batch.logits + shift.unsqueeze(1)
