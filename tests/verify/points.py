"""A model of two numbers with a quadratic loss, for rounds that are computed by hand."""

from typing import Any

import torch
from torch import Tensor, nn

from fedfm.engine.networks import copy_model
from fedfm.methods import FedAvg
from fedfm.verify.checks import same_model
from fedfm.verify.fixtures import SmallFederation
from fedfm.verify.textbook_federation import cohort_of

TARGETS = torch.tensor(
    [[0.0, 0.0], [4.0, 0.0], [8.0, 0.0], [3.0, 4.0], [3.75, 4.0]], dtype=torch.float64
)
ORIGIN, FOUR, EIGHT, FIVE_AWAY, ASKEW = range(5)


class Point(nn.Module):
    """Two parameters, one each; the features of every sample are the point itself.

    Its logits are 0, so that cross-entropy has no gradient.
    """

    def __init__(self, a: float = 0.0, b: float = 0.0) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.tensor(a, dtype=torch.float64))
        self.b = nn.Parameter(torch.tensor(b, dtype=torch.float64))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = torch.stack([self.a, self.b]).expand(len(x), 2)
        return features, torch.zeros(len(x), len(TARGETS), dtype=torch.float64)


def distance(features: Tensor, labels: Tensor) -> Tensor:
    """Half the squared distance to the target; its gradient is point minus target."""
    return 0.5 * ((features - TARGETS[labels]) ** 2).sum(1).mean()


def client(name: str, target: int, steps: int = 1, samples: int = 1) -> dict[str, Any]:
    """A client whose every batch is one sample of one target."""
    batch = torch.zeros(1, 1, dtype=torch.float64), torch.tensor([target])
    return {"id": name, "batches": [batch] * steps, "samples": samples, "data": batch}


def build(kind: Any, at: tuple[float, float] = (0.0, 0.0), total: int = 2, **options: Any) -> Any:
    """A method of the textbook on a point, with learning rate 0.5 and plain SGD."""
    return kind(Point(*at), total, 0.5, extra_loss=distance, **options)


def where(method: Any) -> list[float]:
    """Where the global point is."""
    return [float(method.model.a.detach()), float(method.model.b.detach())]


HARD = SmallFederation("tiny cnn with batch norm", lr_gamma=0.9)
"""Partial participation, unequal steps, momentum, weight decay, batch norm, a decaying rate."""


def in_world(kind: Any, world: SmallFederation = HARD, **options: Any) -> Any:
    """A method of the textbook on the network of a world."""
    sgd = {name: getattr(world, name) for name in ("lr", "momentum", "weight_decay", "lr_gamma")}
    return kind(model=world.module, clients_total=len(world.sizes), **sgd, **options)


def play(method: Any, rounds: int = 4, world: SmallFederation = HARD) -> Any:
    """The same method after some rounds."""
    for t in range(rounds):
        method.round(cohort(t, world))
    return method


def cohort(t: int, world: SmallFederation = HARD) -> Any:
    """Who takes part in a round, and with which batches."""
    return cohort_of(world.make_federation((FedAvg(),)), world.data, t)


def agree(first: Any, second: Any, tolerance: float = 1e-12) -> None:
    """Raise a mismatch if two methods end at different models, buffers included."""
    same_model(copy_model(first.model), copy_model(second.model), tolerance)
