"""The accuracy of the global model: on each client's validation samples, and on the test set."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedfm.algorithms.base import Model
from fedfm.core import trees
from fedfm.engine.executors import Executor
from fedfm.engine.feed import Feed
from fedfm.engine.sweep import accuracy


class Evaluator:
    """Measures a model on the validation samples [n_k] of every client and on the test set."""

    def __init__(self, executor: Executor, validation: Sequence[Tensor], test: Feed) -> None:
        self.executor, self.validation, self.test = executor, validation, test
        self.whole = [torch.arange(len(test.labels))]

    def __call__(self, model: Model) -> tuple[float, float]:
        """(the mean of the clients' validation accuracies, the test accuracy)."""
        shared = model.map(trees.share)
        validation = self.executor.measure(shared, self.validation, accuracy)
        test = self.executor.measure(shared, self.whole, accuracy, self.test)
        return float(_shares(validation).mean()), float(_shares(test))


def _shares(counts: trees.Tree) -> Tensor:
    return torch.div(counts["right"].double(), counts["samples"])
