"""The accuracy of the global model: on each client's validation samples, and on the test set."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedfm.core import trees
from fedfm.core.trees import Tree
from fedfm.engine.device_data import DeviceData
from fedfm.engine.executors import Executor
from fedfm.engine.forward import count_correct
from fedfm.methods.base import Model


class Evaluator:
    """Measures a model on the validation samples [n_k] of every client and on the test set."""

    def __init__(self, executor: Executor, validation: Sequence[Tensor], test: DeviceData) -> None:
        self.executor, self.validation, self.test = executor, validation, test
        self.all_test_samples = [torch.arange(len(test.labels))]

    def __call__(self, model: Model) -> tuple[Tensor, float]:
        """Return the accuracy on each client's validation samples [N], and on the test set."""
        return self.measure_clients(model), float(accuracies(self.count_test(model)))

    def measure_clients(self, model: Model) -> Tensor:
        """Return the accuracy on the validation samples of every client [N]."""
        return accuracies(
            self.executor.measure(model.map(trees.share), self.validation, count_correct)
        )

    def count_test(self, model: Model) -> Tree:
        """Count the correct test samples and all test samples [1]."""
        return self.executor.measure(
            model.map(trees.share), self.all_test_samples, count_correct, self.test
        )


def accuracies(counts: Tree) -> Tensor:
    """Return accuracies [N] from the counts of correct and of all samples."""
    return torch.div(counts["right"].double(), counts["samples"])
