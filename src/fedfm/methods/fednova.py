"""FedNova: clients that take more steps do not pull harder.

J. Wang, Q. Liu, H. Liang, G. Joshi, H. V. Poor. Tackling the Objective Inconsistency Problem in
Heterogeneous Federated Optimization. NeurIPS 2020 (Eq. 7, Sec. 4).
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedfm.core.trees import Tree
from fedfm.methods.base import LocalRun, Participation, Piece


@dataclass(frozen=True)
class FedNova(Piece):
    """Changes normalised by the local work behind them.

    x+ = x + tau_eff sum_i p_i (y_i - x) / a_i, with tau_eff = sum_i p_i a_i.

    Examples:
        >>> FedNova().shares_every_round  # so it does not combine with FedFM-Lite, a > 1
        True
    """

    name = "fednova"
    claims: ClassVar[frozenset[str]] = frozenset({"weights"})
    shares_every_round = True
    needs_sgd = True

    def normaliser(self, run: LocalRun) -> Tensor:
        """Return a_i [S]: how far the steps move under a unit gradient, with a proximal pull."""
        return run.accumulation

    def finish(self, client: Tree, run: LocalRun, down: Tree) -> tuple[Tree, Tree]:
        """Send n_i a_i."""
        return {"work": run.samples * self.normaliser(run)}, {}

    def weights(self, weights: Tensor, run: LocalRun) -> Tensor:
        """Return u_i = n_i / a_i."""
        return weights / self.normaliser(run)

    def rescale(self, total: Tree, participation: Participation) -> Tensor:
        """Return tau_eff sum_i p_i / a_i, since the mean change is over the weights u_i."""
        factor: Tensor = total["work"] * participation.weight / participation.samples.square()
        return factor
