"""The metrics of the global model: on each client's validation samples, and on the test set."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from fedfm.core import trees
from fedfm.core.trees import Tree
from fedfm.engine.device_data import DeviceData
from fedfm.engine.executors import Executor
from fedfm.engine.forward import CLIENTS, Statistic
from fedfm.engine.processes import ALONE, Processes
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

    `data` are the training data, which have the validation samples, and the test data. `owned` has
    the test samples [m_k] of every client, where test samples belong to clients. Each of several
    `processes` measures a part of every client's samples.
    """

    def __init__(
        self,
        executor: Executor,
        validation: Sequence[Tensor],
        data: tuple[DeviceData, DeviceData],
        measures: Measures | None = None,
        owned: Sequence[Tensor] = (),
        processes: Processes = ALONE,
    ) -> None:
        self.executor, self.validation, self.processes = executor, validation, processes
        self.train, self.test = data
        self.measures, self.owned = measures or Measures(), owned
        self.test_samples = [*owned, _list_others(len(self.test.labels), owned)]

    def alone(self) -> "Evaluator":
        """Return an evaluator that measures all samples in this process."""
        both = self.train, self.test
        return Evaluator(self.executor, self.validation, both, self.measures, self.owned)

    def __call__(self, model: Model, own_models: OwnModels | None = None) -> Evaluation:
        """Measure the model on everything, or each client's own model where clients have one.

        A client's own model is tested on the client's test samples, or on all of them if test
        samples do not belong to clients.
        """
        if own_models is not None:
            return self._evaluate_own(own_models)
        test = self.measure_test(model)
        return Evaluation(self.measure_clients(model), test.join(), self._select_owned(test))

    def _select_owned(self, test: "SummedStatistics") -> Values:
        """Return values on the test samples of every client [N]; {} if they are not known."""
        count = len(self.owned)
        return {name: value[:count] for name, value in test.values().items()} if count else {}

    def _evaluate_own(self, own_models: OwnModels) -> Evaluation:
        everything = torch.arange(len(self.test.labels))
        test = self._measure_own(
            own_models, self.owned or [everything] * own_models.clients, self.test
        )
        clients = self._select_owned(test)
        if not any(map(len, self.validation)):
            return Evaluation({}, test.join(), clients)
        validation = self._measure_own(own_models, self.validation, self.train)
        return Evaluation(validation.values(), test.join(), clients)

    def _measure_own(
        self, own_models: OwnModels, samples: Sequence[Tensor], data: DeviceData
    ) -> "SummedStatistics":
        """Measure each client's own model on its samples."""
        parts = []
        for first in range(0, own_models.clients, CLIENTS):
            some = range(first, min(first + CLIENTS, own_models.clients))
            parts.append(self.measure(own_models.models(some), [samples[k] for k in some], data))
        return SummedStatistics.concat(parts)

    def measure_clients(self, model: Model) -> Values:
        """Return values on the validation samples of every client [N]; {} if there are none."""
        if not any(map(len, self.validation)):
            return {}
        return self.measure(model.map(trees.share), self.validation, self.train).values()

    def measure_test(self, model: Model) -> "SummedStatistics":
        """Measure the model on the test samples: of each client, and a last row of nobody's."""
        return self.measure(model.map(trees.share), self.test_samples, self.test)

    def measure(
        self, model: Model, samples: Sequence[Tensor], data: DeviceData
    ) -> "SummedStatistics":
        """Measure models on each client's samples [n_s] of `data`.

        Predictions are kept where a metric needs all of them, unless clients share samples.
        """
        measures, disjoint = self.measures, sum(map(len, samples)) <= len(data.labels)
        if not measures.exact or not disjoint:
            return SummedStatistics(
                measures, self._sum(model, samples, measures.statistic, data), []
            )
        labels = data.labels.to(data.device)
        numbered = replace(data, labels=torch.arange(len(labels), device=data.labels.device))
        logits = torch.empty(0)

        def keep(batch: Batch) -> Tree:
            nonlocal logits
            if not len(logits):
                logits = batch.logits.new_zeros(len(labels), batch.logits.shape[-1])
            logits[batch.labels[batch.mask]] = batch.logits[batch.mask]
            return measures.statistic(batch._replace(labels=labels[batch.labels]))

        totals = self._sum(model, samples, keep, numbered)
        logits = self.processes.add({"logits": logits} if len(logits) else {})["logits"]
        places = [part.to(labels.device) for part in samples]
        return SummedStatistics(measures, totals, [(logits[part], labels[part]) for part in places])

    def _sum(
        self, model: Model, samples: Sequence[Tensor], statistic: Statistic, data: DeviceData
    ) -> Tree:
        """Return the sum of a statistic over each client's samples [N, ...], of all processes."""
        local_samples = self.processes.split(samples)
        some = self.processes.size == 1 or any(map(len, local_samples))
        return self.processes.add(
            self.executor.measure(model, local_samples, statistic, data) if some else {}
        )


@dataclass(frozen=True)
class SummedStatistics:
    """Summed statistics of N sets of samples, and their predictions where these are kept."""

    measures: Measures
    totals: Tree
    """[N, ...]."""
    predictions: Sequence[tuple[Tensor, Tensor]]
    """Logits [n_k, C] and labels [n_k] of each set; none if they are not kept."""

    @staticmethod
    def concat(parts: Sequence["SummedStatistics"]) -> "SummedStatistics":
        """Return the sets of all parts."""
        predictions = [pair for part in parts for pair in part.predictions]
        return SummedStatistics(
            parts[0].measures, trees.concat([p.totals for p in parts]), predictions
        )

    def values(self) -> Values:
        """Return the values [N] of the metrics that are one number; exact where possible."""
        values = self.measures.values(self.totals, self.measures.numbers)
        exact = [self._exact(*pair) for pair in self.predictions]
        names = (metric.name for metric in self.measures.exact)
        return values | {n: torch.stack([e[n] for e in exact]) for n in names if exact}

    def join(self) -> Values:
        """Return the values [...] of all metrics over all sets together."""
        whole = self.measures.values(trees.share(trees.sum_clients(self.totals)))
        values = {name: value[0] for name, value in whole.items()}
        if not self.predictions:
            return values
        logits, labels = map(torch.cat, zip(*self.predictions, strict=True))
        return values | self._exact(logits, labels)

    def _exact(self, logits: Tensor, labels: Tensor) -> Values:
        """Return the exact values of one set."""
        return {metric.name: metric.exact(logits, labels) for metric in self.measures.exact}


def _list_others(samples: int, owned: Sequence[Tensor]) -> Tensor:
    """Return the samples that belong to nobody."""
    others = torch.ones(samples, dtype=torch.bool)
    for part in owned:
        others[part] = False
    return others.nonzero().flatten()
