"""FedNova: clients that take more steps do not pull harder.

J. Wang, Q. Liu, H. Liang, G. Joshi, H. V. Poor. Tackling the Objective Inconsistency Problem in
Heterogeneous Federated Optimization. NeurIPS 2020 (Eq. 7, Sec. 4).
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedfm.algorithms.base import LocalRun, Piece
from fedfm.core.trees import Tree


@dataclass(frozen=True)
class FedNova(Piece):
    """Changes normalised by the local work behind them.

    x+ = x + tau_eff sum_i p_i (y_i - x) / a_i, with tau_eff = sum_i p_i a_i.
    """

    name = "fednova"
    claims: ClassVar[frozenset[str]] = frozenset({"weights"})
    shares_every_round = True

    def finish(self, client: Tree, run: LocalRun, down: Tree) -> tuple[Tree, Tree]:
        """Send a_i: what the client's steps made of a unit gradient, a proximal pull included."""
        return {"a": run.accumulation}, {}

    def weights(self, weights: Tensor, up: Tree) -> Tensor:
        """w_i = tau_eff p_i / a_i."""
        a: Tensor = up["a"].to(weights)
        return (weights * a).sum() * weights / a
