"""The metrics of the global model: on each client's validation samples, and on the test set."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedfm.core import trees
from fedfm.core.trees import Tree
from fedfm.engine.device_data import DeviceData
from fedfm.engine.executors import Executor
from fedfm.engine.forward import CLIENTS, Statistic
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


class OwnModels(NamedTuple):
    """The models that clients have of their own."""

    clients: int
    """N, the number of clients."""
    models: Callable[[Sequence[int]], Model]
    """Returns the models [S, ...] of some clients."""


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

    def __call__(self, model: Model, own: OwnModels | None = None) -> Evaluation:
        """Measure the model on everything, or each client's own model where clients have one.

        A client's own model is tested on the client's test samples, or on all of them if test
        samples do not belong to clients.
        """
        if own is not None:
            return self._evaluate_own(own)
        seen: list[tuple[Tensor, Tensor]] = []

        def collect(batch: Batch) -> Tree:
            seen.append((batch.logits[batch.mask], batch.labels[batch.mask]))
            return self.measures.statistic(batch)

        totals = self.measure_test(model, collect if self.measures.exact else None)
        whole = self.measures.values(trees.share(trees.sum_clients(totals)))
        test = {name: value[0] for name, value in whole.items()} | self._exact_values(seen)
        return Evaluation(self.measure_clients(model), test, self._owned_values(totals))

    def _owned_values(self, totals: Tree) -> Values:
        """Return values on the test samples of every client [N]; {} if they are not known."""
        if not self.owned:
            return {}
        rows = trees.tree_map(lambda leaf: leaf[: len(self.owned)], totals)
        return self.measures.values(rows, self.measures.numbers)

    def _evaluate_own(self, own: OwnModels) -> Evaluation:
        everything = torch.arange(len(self.test.labels))
        samples = self.owned or [everything] * own.clients
        totals = self._measure_own(own, samples, self.test)
        whole = self.measures.values(trees.share(trees.sum_clients(totals)))
        test = {name: value[0] for name, value in whole.items()}
        clients = self.measures.values(totals, self.measures.numbers) if self.owned else {}
        if not any(map(len, self.validation)):
            return Evaluation({}, test, clients)
        validation = self._measure_own(own, self.validation)
        return Evaluation(self.measures.values(validation, self.measures.numbers), test, clients)

    def _measure_own(
        self, own: OwnModels, samples: Sequence[Tensor], data: DeviceData | None = None
    ) -> Tree:
        """Return the statistics [N, ...] of each client's samples under its own model."""
        parts = []
        for first in range(0, own.clients, CLIENTS):
            some = range(first, min(first + CLIENTS, own.clients))
            chosen = [samples[client] for client in some]
            models = own.models(some)
            parts.append(self.executor.measure(models, chosen, self.measures.statistic, data))
        return trees.concat(parts)

    def measure_clients(self, model: Model) -> Values:
        """Return values on the validation samples of every client [N]; {} if there are none."""
        if not any(map(len, self.validation)):
            return {}
        totals = self.executor.measure(
            model.map(trees.share), self.validation, self.measures.statistic
        )
        return self.measures.values(totals, self.measures.numbers)

    def measure_test(self, model: Model, statistic: Statistic | None = None) -> Tree:
        """Return statistics of the test samples, by default those of the metrics.

        They are [1, ...], or [N + 1, ...] where samples belong to clients: a row for each client,
        and a last row for the samples of nobody.
        """
        chosen = statistic or self.measures.statistic
        return self.executor.measure(model.map(trees.share), self.test_samples, chosen, self.test)

    def _exact_values(self, seen: list[tuple[Tensor, Tensor]]) -> Values:
        """Return exact values, given the predictions of all passes.

        A pass that ran out of memory has left some, too: the last n are those of a whole pass.
        """
        if not seen:
            return {}
        samples = len(self.test.labels)
        logits, labels = (torch.cat(parts)[-samples:] for parts in zip(*seen, strict=True))
        exact = {metric.name: metric.exact(logits, labels) for metric in self.measures.exact}
        return {name: value for name, value in exact.items() if value is not None}


def _list_others(samples: int, owned: Sequence[Tensor]) -> Tensor:
    """Return the samples that belong to nobody."""
    others = torch.ones(samples, dtype=torch.bool)
    for part in owned:
        others[part] = False
    return others.nonzero().flatten()
