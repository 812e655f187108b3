"""The settings of local SGD, and how far it moves; its step is in engine/update.py."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Sgd:
    """The settings of local SGD.

    Examples:
        >>> Sgd(lr=0.1, momentum=0.0, weight_decay=0.0).accumulation(torch.tensor([3]))
        tensor([3.], dtype=torch.float64)
    """

    lr: float
    """eta, the learning rate."""
    momentum: float
    """rho, heavy-ball momentum."""
    weight_decay: float
    """The weight decay."""

    def accumulation(self, steps: Tensor, pull: float = 0.0) -> Tensor:
        """Return a(K, rho) [S] for K = steps [S]: how far K unit gradients move, in units of eta.

        K for plain SGD, [K - rho (1 - rho^K) / (1 - rho)] / (1 - rho) under momentum. A proximal
        pull mu towards the start shortens it: sum_j (1 - eta mu)^j without momentum.
        """
        distance = velocity = 0.0
        distances = [distance]
        for _ in range(int(steps.max())):
            velocity = self.momentum * velocity + 1.0 - pull * self.lr * distance
            distance += velocity
            distances.append(distance)
        return torch.tensor(distances, dtype=torch.float64)[steps.cpu().long()].to(steps.device)
