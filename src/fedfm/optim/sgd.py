"""Stochastic gradient descent, with heavy-ball or Nesterov momentum."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim.sgd import sgd as fused_sgd

from fedfm.optim.base import Leaves, Optimizer


@dataclass(frozen=True)
class Sgd(Optimizer):
    """SGD: m = rho m + gradient + decay p, then p -= eta m.

    Examples:
        >>> Sgd(lr=0.1, momentum=0.0, weight_decay=0.0).accumulation(torch.tensor([3]))
        tensor([3.], dtype=torch.float64)
    """

    moments = ("momentum",)
    folds_corrections = True

    momentum: float
    """rho, the momentum."""
    weight_decay: float
    """The weight decay, added to the gradient."""
    nesterov: bool = False
    """Whether p moves by gradient + decay p + rho m instead of m."""

    def step(
        self,
        params: Leaves,
        grads: Leaves,
        moments: Mapping[str, Leaves],
        rate: float | Tensor,
        count: Tensor | None,
    ) -> None:
        """Take a step in place."""
        fused_sgd(
            params,
            grads,
            [*moments["momentum"]],
            weight_decay=self.weight_decay,
            momentum=self.momentum,
            lr=rate,  # type: ignore[arg-type]  # torch takes a tensor, too
            dampening=0.0,
            nesterov=self.nesterov,
            maximize=False,
            fused=True,
        )

    def accumulation(
        self, steps: Tensor, pull: float = 0.0, factors: Sequence[float] = ()
    ) -> Tensor:
        """Return a(K, rho) [S] for K = steps [S]: how far K unit gradients move, in units of eta.

        K for plain SGD, [K - rho (1 - rho^K) / (1 - rho)] / (1 - rho) under momentum. A proximal
        pull mu towards the start shortens it: sum_j (1 - eta mu)^j without momentum. The rate of
        step k is eta factors[k], so plain SGD moves by the sum of the factors.
        """
        distance = velocity = 0.0
        distances = [distance]
        for step in range(int(steps.max())):
            gradient = 1.0 - pull * self.lr * distance
            velocity = self.momentum * velocity + gradient
            change = gradient + self.momentum * velocity if self.nesterov else velocity
            distance += factors[step] * change if factors else change
            distances.append(distance)
        return torch.tensor(distances, dtype=torch.float64)[steps.cpu().long()].to(steps.device)
