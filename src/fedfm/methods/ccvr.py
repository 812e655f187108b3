"""CCVR: after training, the head is trained again on features drawn from class-wise Gaussians.

M. Luo, F. Chen, D. Hu, Y. Zhang, J. Liang, J. Feng. No Fear of Heterogeneity: Classifier
Calibration for Federated Learning with Non-IID Data. NeurIPS 2021 (Eq. 3 and 4, Algorithm 1).
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.optim.sgd import sgd

from fedfm.core.errors import require
from fedfm.core.trees import Tree
from fedfm.methods.base import Batch, Model, Piece, Task

BATCH, MOMENTUM = 64, 0.9
"""How the head is trained."""


def class_moments(total: Tree) -> tuple[Tensor, Tensor]:
    """Return the means [C, d] and covariances [C, d, d] of all clients' features by class.

    They are those of the pooled samples: mu = sum z / n, (sum zz^T - n mu mu^T) / (n - 1).
    """
    count = total["count"].double().view(-1, 1)
    mean: Tensor = total["sum"].double() / count.clamp(min=1)
    pairs: Tensor = total["square"].double()
    scatter = pairs - (count * mean).unsqueeze(2) * mean.unsqueeze(1)
    covariance: Tensor = scatter / (count - 1).clamp(min=1).unsqueeze(2)
    return mean, covariance


def draw_features(mean: Tensor, covariance: Tensor, draws: Tensor) -> Tensor:
    """Turn standard normal draws [C, M, d] into features; the root used is the symmetric one."""
    values, vectors = torch.linalg.eigh((covariance + covariance.mT) / 2)
    roots: Tensor = vectors * values.clamp(min=0).sqrt().unsqueeze(1) @ vectors.mT
    return mean.unsqueeze(1) + draws @ roots


@torch.no_grad()
def _take_step(
    leaves: list[Tensor], grads: list[Tensor], momenta: list[Tensor | None], lr: float
) -> None:
    """Take a step of torch.optim.SGD, whose class would import torch's compiler first."""
    sgd(
        leaves,
        grads,
        momenta,
        lr=lr,
        momentum=MOMENTUM,
        weight_decay=0.0,
        dampening=0.0,
        nesterov=False,
        maximize=False,
    )


@dataclass(frozen=True)
class CCVR(Piece):
    """The last round trains nothing: it calibrates the head of the model of the round before.

    Clients send n, sum z and sum zz^T for each class, of the features z under that model, which are
    C d^2 floats and more. The server draws `samples` features of each class from a Gaussian with
    the mean and covariance of all samples, and trains the head on them, from its present weights.
    All clients take part. The records of the last two rounds have the accuracy before and after.

    The paper does not say how many features are drawn per class; its ReLU and Tukey transform of
    features are left out (from memory). Settings of the training are ours.

    Examples:
        >>> from fedfm import FedFM, compose
        >>> compose([FedFM(), CCVR()]).concludes(round=99, rounds=100)
        True
    """

    name = "ccvr"
    claims: ClassVar[frozenset[str]] = frozenset({"stages"})
    measures: ClassVar[Literal["before", "after", "end"] | None] = "end"
    needs_whole_model = True
    shares_every_round = True

    samples: int = 200
    """Features that are drawn for each class."""
    epochs: int = 10
    """Epochs over these features."""
    lr: float = 0.01
    """The learning rate of the head, with momentum 0.9 and batches of 64."""

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        super().__post_init__()
        require(self.samples >= 1, f"ccvr: samples must be >= 1, not {self.samples}")
        require(self.epochs >= 0, f"ccvr: epochs must be >= 0, not {self.epochs}")
        require(self.lr > 0, f"ccvr: lr must be > 0, not {self.lr}")

    def check(self, task: Task) -> None:
        """Refuse a network whose head is not a linear layer that is trained."""
        shapes = [tuple(task.params[name].shape) for name in task.head if name in task.params]
        linear = (task.classes, task.features)
        require(
            sorted(shapes) in ([linear], [(task.classes,), linear]),
            "ccvr: the network's last layer must be linear, trained and known: use model.head = "
            "'linear', do not freeze it, and wrap your own network by WithFeatures(network, head)",
        )

    def statistic(self, batch: Batch) -> Tree:
        """Class counts [S, C], sums [S, C, d] and sums of squares [S, C, d, d] of features."""
        classes, features = batch.logits.shape[-1], batch.features
        one_hot = torch.arange(classes, device=features.device) == batch.labels.unsqueeze(-1)
        one_hot = one_hot & batch.mask.unsqueeze(-1)
        weights = one_hot.to(features.dtype)
        squares = [(features * weights[..., c, None]).mT @ features for c in range(classes)]
        return {
            "count": one_hot.sum(-2),
            "sum": weights.mT @ features,
            "square": torch.stack(squares, 1),
        }

    def conclude(self, task: Task, model: Model, total: Tree, random: np.random.Generator) -> Model:
        """Return the model with its head trained on features of the classes that exist."""
        mean, covariance = class_moments(total)
        shape = len(mean), self.samples, mean.shape[1]
        draws = torch.from_numpy(random.standard_normal(shape)).to(mean)
        held = (total["count"] > 0).repeat_interleave(self.samples)
        like = next(iter(model.params.values()))
        features = draw_features(mean, covariance, draws).flatten(0, 1)[held].to(like.dtype)
        labels = torch.arange(len(mean), device=held.device).repeat_interleave(self.samples)[held]
        head = {name: model.params[name].clone() for name in task.head}
        return model._replace(params=model.params | self._train(head, features, labels, random))

    def _train(
        self, head: Tree, features: Tensor, labels: Tensor, random: np.random.Generator
    ) -> Tree:
        """Return the weights of a linear head, trained on features [m, d] and labels [m]."""
        weight = next(leaf for leaf in head.values() if leaf.ndim == 2)
        bias = next((leaf for leaf in head.values() if leaf.ndim == 1), None)
        leaves: list[Tensor] = [leaf.requires_grad_() for leaf in head.values()]
        momenta: list[Tensor | None] = [None] * len(leaves)
        for _ in range(self.epochs):
            order = torch.from_numpy(random.permutation(len(labels))).to(labels.device)
            for batch in torch.split(order, BATCH):
                logits = F.linear(features[batch], weight, bias)
                grads = torch.autograd.grad(F.cross_entropy(logits, labels[batch]), leaves)
                _take_step(leaves, [*grads], momenta, self.lr)
        return {name: leaf.detach() for name, leaf in head.items()}
