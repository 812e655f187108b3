"""Local SGD, and what it makes of a steady gradient."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Sgd:
    """Learning rate eta, heavy-ball momentum rho, weight decay."""

    lr: float
    momentum: float
    weight_decay: float

    def accumulation(self, steps: Tensor, pull: float = 0.0) -> Tensor:
        """a(K, rho) for K = steps [S]: how far K unit gradients go, in units of eta -> [S].

        K for plain SGD, [K - rho (1 - rho^K) / (1 - rho)] / (1 - rho) under momentum. A proximal
        pull mu towards the start shortens it: sum_j (1 - eta mu)^j without momentum.
        """
        way = velocity = 0.0
        ways = [way]
        for _ in range(int(steps.max())):
            velocity = self.momentum * velocity + 1.0 - pull * self.lr * way
            way += velocity
            ways.append(way)
        return torch.tensor(ways, dtype=torch.float64)[steps.cpu().long()].to(steps.device)
