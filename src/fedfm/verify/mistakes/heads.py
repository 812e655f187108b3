"""Mistakes around the head: FedETF's simplex and CCVR."""

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from fedfm.core.trees import Tree
from fedfm.methods import CCVR, BalancedSoftmax
from fedfm.models.simplex import Simplex
from fedfm.rounds.federation import Federation
from fedfm.verify.mistakes.planting import plant, plant_in

cosines = Simplex.cosines


@plant_in(Simplex, "cosines", "FedETF: projected features are not normalised", BalancedSoftmax())
def keep_lengths(self: Simplex, x: Tensor) -> Tensor:
    """Return M^T x."""
    lengths: Tensor = x.norm(dim=-1, keepdim=True)
    return cosines(self, x) * lengths


@plant_in(Simplex, "cosines", "FedETF: vertices are not brought to length 1", BalancedSoftmax())
def keep_short(self: Simplex, x: Tensor) -> Tensor:
    """Return (I - 11^T / C) x / ||x||."""
    unit = F.normalize(x, dim=-1)
    return unit - unit.mean(-1, keepdim=True)


@plant("means and squares are averaged over clients without weights (another paper's code)")
class MomentsUnweighted(CCVR):
    """Every holder of a class counts alike."""

    def report(self, statistic: Tree) -> Tree:
        count = statistic["count"].clamp(min=1).unsqueeze(-1)
        mean, square = statistic["sum"] / count, statistic["square"] / count.unsqueeze(-1)
        return {"count": statistic["count"].clamp(max=1), "sum": mean, "square": square}


@plant("clients divide their covariances by n_i instead of n_i - 1 (public libraries)")
class CovarianceBiased(CCVR):
    """The spread within each client is too small."""

    def report(self, statistic: Tree) -> Tree:
        count = statistic["count"].clamp(min=1).unsqueeze(-1)
        mean, square = statistic["sum"] / count, statistic["square"] / count.unsqueeze(-1)
        spread = square - mean.unsqueeze(-1) * mean.unsqueeze(-2)
        return statistic | {"square": statistic["square"] - spread}


LAST_COHORT: Any = property(lambda fed: fed.cohort(fed.rounds - 1))
plant_in(Federation, "everyone", "only the last cohort is asked", CCVR())(LAST_COHORT)
