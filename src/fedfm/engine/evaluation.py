"""The accuracy of the global model: on each client's validation samples, and on the test set."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedfm.core import trees
from fedfm.core.trees import Tree
from fedfm.engine.device_data import Feed
from fedfm.engine.executors import Executor
from fedfm.engine.forward import accuracy
from fedfm.methods.base import Model


class Evaluator:
    """Measures a model on the validation samples [n_k] of every client and on the test set."""

    def __init__(self, executor: Executor, validation: Sequence[Tensor], test: Feed) -> None:
        self.executor, self.validation, self.test = executor, validation, test
        self.whole = [torch.arange(len(test.labels))]

    def __call__(self, model: Model) -> tuple[Tensor, float]:
        """Return the accuracy on each client's validation samples [N], and on the test set."""
        return self.clients(model), float(shares(self.tested(model)))

    def clients(self, model: Model) -> Tensor:
        """Its accuracy on the validation samples of every client [N]."""
        return shares(self.executor.measure(model.map(trees.share), self.validation, accuracy))

    def tested(self, model: Model) -> Tree:
        """How many test samples it gets right, and how many there are [1]."""
        return self.executor.measure(model.map(trees.share), self.whole, accuracy, self.test)


def shares(counts: Tree) -> Tensor:
    """Accuracies [N], from what was counted."""
    return torch.div(counts["right"].double(), counts["samples"])
