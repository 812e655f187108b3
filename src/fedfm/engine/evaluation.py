"""The metrics of the global model: on each client's validation samples, and on the test set."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedfm.core import trees
from fedfm.core.trees import Tree
from fedfm.engine.device_data import DeviceData
from fedfm.engine.executors import Executor
from fedfm.methods.base import Batch, Model
from fedfm.metrics.measures import Measures

Values = dict[str, Tensor]
"""Values by the name of their metric."""


class Evaluation(NamedTuple):
    """What a model reaches."""

    validation: Values
    """Of the metrics that are one number, on each client's validation samples [N]."""
    test: Values
    """Of all metrics, on the test set [...]; exact where a sum of statistics is not."""
    clients: Values
    """Of the metrics that are one number, on each client's test samples [N], where they are known.
    """


class Evaluator:
    """Measures a model on the validation samples [n_k] of every client and on the test set.

    `owned` has the test samples [m_k] of every client, where test samples belong to clients.
    """

    def __init__(
        self,
        executor: Executor,
        validation: Sequence[Tensor],
        test: DeviceData,
        measures: Measures | None = None,
        owned: Sequence[Tensor] = (),
    ) -> None:
        self.executor, self.validation, self.test = executor, validation, test
        self.measures, self.owned = measures or Measures(), owned
        self.test_samples = [*owned, _list_others(len(test.labels), owned)]

    def __call__(self, model: Model) -> Evaluation:
        """Measure the model on everything."""
        totals, exact = self.measure_test(model)
        values = {name: value[0] for name, value in self._sum_values(totals).items()}
        clients = self._number_values(totals) if self.owned else {}
        of_clients = {name: value[: len(self.owned)] for name, value in clients.items()}
        return Evaluation(self.measure_clients(model), values | exact, of_clients)

    def measure_clients(self, model: Model) -> Values:
        """Return values on the validation samples of every client [N]; {} if there are none."""
        if not any(map(len, self.validation)):
            return {}
        return self._number_values(
            self.executor.measure(model.map(trees.share), self.validation, self.measures.statistic)
        )

    def measure_test(self, model: Model) -> tuple[Tree, Values]:
        """Return statistics of the test samples, and exact values [] of the whole test set.

        The statistics are [1, ...], or [N + 1, ...] with a row for each client if samples belong
        to clients, and a last row for samples of nobody.
        """
        seen: list[tuple[Tensor, Tensor]] = []

        def collect(batch: Batch) -> Tree:
            seen.append((batch.logits[batch.mask], batch.labels[batch.mask]))
            return self.measures.statistic(batch)

        statistic = collect if self.measures.exact else self.measures.statistic
        totals = self.executor.measure(
            model.map(trees.share), self.test_samples, statistic, self.test
        )
        return totals, self._exact_values(seen)

    def _exact_values(self, seen: list[tuple[Tensor, Tensor]]) -> Values:
        """Return exact values, given the predictions of all passes.

        A pass that ran out of memory has left some, too: the last n are those of a whole pass.
        """
        if not seen:
            return {}
        logits, labels = (torch.cat(parts)[-len(self.test.labels) :] for parts in zip(*seen))
        exact = {metric.name: metric.exact(logits, labels) for metric in self.measures.exact}
        return {name: value for name, value in exact.items() if value is not None}

    def _number_values(self, totals: Tree) -> Values:
        return self.measures.values(totals, self.measures.numbers)

    def _sum_values(self, totals: Tree) -> Values:
        """Return the values [1, ...] of all samples together."""
        return self.measures.values(trees.share(trees.sum_clients(totals)))


def _list_others(samples: int, owned: Sequence[Tensor]) -> Tensor:
    """Return the samples that belong to nobody."""
    others = torch.ones(samples, dtype=torch.bool)
    for part in owned:
        others[part] = False
    return others.nonzero().flatten()
