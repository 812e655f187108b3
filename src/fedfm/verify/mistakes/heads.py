"""Mistakes around the head: FedETF's simplex and CCVR."""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedfm.core.trees import Tree
from fedfm.methods import CCVR, BalancedSoftmax, Model, Task, ccvr
from fedfm.models.simplex import Simplex
from fedfm.rounds.federation import Federation
from fedfm.verify.mistakes.planting import plant, plant_in

cosines, class_moments = Simplex.cosines, ccvr.class_moments


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


@plant_in(ccvr, "class_moments", "covariances are divided by n instead of n - 1", CCVR())
def divide_by_all(total: Tree) -> tuple[Tensor, Tensor]:
    """Return the moments with a biased covariance."""
    mean, covariance = class_moments(total)
    count = total["count"].double().clamp(min=1)
    return mean, covariance * ((count - 1) / count).view(-1, 1, 1)


@plant_in(ccvr, "draw_features", "features have the diagonal of the covariance alone", CCVR())
def draw_apart(mean: Tensor, covariance: Tensor, draws: Tensor) -> Tensor:
    """Draw every feature by itself."""
    deviation = covariance.diagonal(dim1=1, dim2=2).clamp(min=0).sqrt()
    return mean.unsqueeze(1) + draws * deviation.unsqueeze(1)


@plant_in(ccvr, "draw_features", "draws are multiplied by S instead of its root", CCVR())
def draw_twice(mean: Tensor, covariance: Tensor, draws: Tensor) -> Tensor:
    """Draw features with the covariance S S."""
    return mean.unsqueeze(1) + draws @ covariance


@plant("the head is trained from new weights instead of its present ones")
class NewHead(CCVR):
    """The head begins at zero."""

    def conclude(self, task: Task, model: Model, total: Tree, random: np.random.Generator) -> Model:
        zeros = {name: torch.zeros_like(model.params[name]) for name in task.head}
        bare = model._replace(params=model.params | zeros)
        return super().conclude(task, bare, total, random)


@plant("classes that nobody has are drawn, too")
class DrawsAbsent(CCVR):
    """The zero vector is a training sample of them."""

    def conclude(self, task: Task, model: Model, total: Tree, random: np.random.Generator) -> Model:
        return super().conclude(task, model, total | {"count": total["count"].clamp(min=1)}, random)
