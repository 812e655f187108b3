"""The accuracy of the global model: on each client's validation samples, and on the test set."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedfm.algorithms.base import Model
from fedfm.core import trees
from fedfm.engine.feed import Feed
from fedfm.engine.nets import Net
from fedfm.engine.sweep import accuracy, sweep


class Evaluator:
    """Measures a model on the validation samples [n_k] of every client and on the test set."""

    def __init__(
        self, module: nn.Module, train: Feed, validation: Sequence[Tensor], test: Feed
    ) -> None:
        self.net = Net(module)
        self.train, self.validation, self.test = train, validation, test

    def __call__(self, model: Model) -> tuple[float, float]:
        """(the mean of the clients' validation accuracies, the test accuracy)."""
        whole = [torch.arange(len(self.test.labels))]
        validation = self._accuracies(model, self.validation, self.train)
        return float(validation.mean()), float(self._accuracies(model, whole, self.test))

    def _accuracies(self, model: Model, samples: Sequence[Tensor], feed: Feed) -> Tensor:
        counts = sweep(self.net, model.map(trees.share), samples, accuracy, feed)
        right, everything = counts["right"], counts["samples"]
        return torch.div(right.double(), everything)
