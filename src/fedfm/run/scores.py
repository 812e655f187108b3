"""Scores of models: how an evaluation becomes the numbers of a round, and what needs checking."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedfm.config import Config
from fedfm.core.errors import list_some, plural, require
from fedfm.data.dataset import Dataset
from fedfm.engine.evaluation import Evaluation
from fedfm.metrics import Accuracy
from fedfm.metrics.measures import Measures, to_plain_values
from fedfm.run.client_results import ClientResults
from fedfm.run.records import Best, Metrics, Score

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Selection:
    """Which round is reported: the best one by a metric on validation samples, or the last."""

    metric: str = "accuracy"
    lower: bool = False
    """Whether lower values are better."""
    last: bool = False
    """Whether the last round is reported."""

    def prefers(self, score: Score, best: Best | None) -> bool:
        """Return whether a model replaces the best one; of equals, the first stays."""
        if best is None or self.last:
            return True
        new = self.find(score.validation, score.metrics)
        old = self.find(best.val_accuracy, best.metrics)
        if new is None or old is None:
            return old is None and new is not None
        return new < old if self.lower else new > old

    def find(self, accuracy: float | None, metrics: Metrics) -> float | None:
        """Return the value that counts, given validation accuracy and further metrics."""
        if self.metric == Accuracy.name:
            return accuracy
        value: float | None = metrics.get("val", {}).get(self.metric)
        return value


def make_selection(config: Config) -> Selection:
    """Return which round a config reports; the last where clients keep models of their own.

    Clients keep only the last of them.
    """
    chosen = config.training.select_by or Accuracy.name
    last = config.training.reports_last or config.composed.keeps_models
    return Selection(chosen, chosen in list_lower(config.measures), last)


def score_evaluation(evaluation: Evaluation, measures: Measures, by_client: bool = True) -> Score:
    """Return the score of an evaluated model; `by_client`: validation samples are the clients'."""
    validation = make_results("validation", evaluation.validation, measures)
    clients = make_results("test", evaluation.clients, measures)
    test = to_plain_values(evaluation.test)
    accuracy = test.pop(Accuracy.name)
    client_accuracies = evaluation.validation.get(Accuracy.name)
    return Score(
        None if client_accuracies is None else float(client_accuracies.mean()),
        accuracy,
        tuple(client_accuracies.tolist()) if client_accuracies is not None and by_client else (),
        metrics=join_metrics(validation, test),
        results=clients or (validation if by_client else None),
    )


def make_results(
    split: Literal["test", "validation"], values: Mapping[str, Tensor], measures: Measures
) -> ClientResults | None:
    """Return the results of clients, given values [N]; None if there are none."""
    if not values:
        return None
    return ClientResults.from_values(split, to_plain_values(values), list_lower(measures))


def list_lower(measures: Measures) -> list[str]:
    """Return the metrics of which lower values are better."""
    return [metric.name for metric in measures.numbers if metric.better == "lower"]


def join_metrics(validation: ClientResults | None, test: Mapping[str, object]) -> Metrics:
    """Return further metrics than accuracy by split; {} if there are none."""
    if not test:
        return {}
    if validation is None:
        return {"test": dict(test)}
    names = [name for name in validation.metrics if name != Accuracy.name]
    return {"val": {name: validation.mean(name) for name in names}, "test": dict(test)}


def find_owned(data: Dataset, shards: Sequence[np.ndarray]) -> list[Tensor]:
    """Return the test samples of every client; [] if the data do not say whose they are.

    They do if every client has the training samples of one client that the data name.
    """
    if data.train.clients is None or data.test.clients is None:
        return []
    names = [torch.unique(data.train.clients[torch.from_numpy(shard)]).tolist() for shard in shards]
    owners = [several[0] for several in names if len(several) == 1]
    if len(set(owners)) < len(shards):
        return []
    return [(data.test.clients == owner).nonzero().flatten() for owner in owners]


def check_test_classes(data: Dataset) -> None:
    """Refuse test samples of classes that no training sample has: no model can learn them."""
    known, tested = ({*torch.unique(s.labels).tolist()} for s in (data.train, data.test))
    lacking = [data.classes[label] for label in sorted(tested - known)]
    require(
        not lacking,
        f"test samples have {'class' if len(lacking) == 1 else 'classes'} {list_some(lacking)}, "
        "which no training sample has: correct these labels, or leave the samples out",
    )


def check_labels(
    measures: Measures, select_by: str | None, test: Tensor, validation: Sequence[Tensor]
) -> None:
    """Refuse metrics that the labels leave without a value; warn where clients lack one."""

    def count(labels: Tensor) -> int:
        return len(torch.unique(labels))

    for metric in (each for each in measures.metrics if each.classes > 1):
        needs = f"metric {metric.name} needs samples of {metric.classes} classes"
        require(
            count(test) >= metric.classes,
            f"{needs}, and the test samples have {count(test)}: leave it out of metrics",
        )
        poor = sum(count(labels) < metric.classes for labels in validation if len(labels))
        require(
            metric.name != select_by or poor < len(validation),
            f"{needs}, and no client has as many in its validation samples: set select_by to "
            "another metric, such as 'log_loss'",
        )
        if poor:
            clients = plural(poor, "client")
            message = "%s: %s of %d with fewer in the validation samples have no value of it"
            logger.warning(message, needs, clients, len(validation))
