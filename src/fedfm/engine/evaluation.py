"""The accuracy of the global model: on each client's validation samples, and on the test set."""

from collections.abc import Sequence
from typing import NamedTuple

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

    def __call__(self, model: Model) -> "Score":
        """How good a model is."""
        shared = model.map(trees.share)
        validation = self.executor.measure(shared, self.validation, accuracy)
        test = self.executor.measure(shared, self.whole, accuracy, self.test)
        return Score(_shares(validation), float(_shares(test)))


class Score(NamedTuple):
    """Accuracies of a model: on the validation samples of every client [N], and on the test set."""

    clients: Tensor
    test: float

    @property
    def validation(self) -> float:
        """The mean of the clients' accuracies."""
        return float(self.clients.mean())


def _shares(counts: trees.Tree) -> Tensor:
    return torch.div(counts["right"].double(), counts["samples"])
