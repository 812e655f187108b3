"""Scores of a model, measured by the clients or on the server's data."""

import logging
from collections.abc import Callable

from fedfm.config import Config
from fedfm.core import trees
from fedfm.core.errors import UserError, require
from fedfm.core.inputs import input_shape
from fedfm.data.dataset import Dataset
from fedfm.deploy.agreement import Agreement, apply_agreement
from fedfm.deploy.events import emit
from fedfm.deploy.server.descriptions import describe_score
from fedfm.deploy.server.sums import Collected
from fedfm.engine.evaluation import Evaluator
from fedfm.engine.executors import LoopExecutor
from fedfm.methods.base import Model
from fedfm.metrics import Accuracy
from fedfm.metrics.measures import Measures, to_plain_values
from fedfm.run.client_results import ClientResults
from fedfm.run.prepare import build_model, load_data
from fedfm.run.records import Best, Progress, Score
from fedfm.run.scores import join_metrics, list_lower, make_selection, score_evaluation
from fedfm.run.simulation import device_data

logger = logging.getLogger(__name__)


def make_score(collected: Collected, measures: Measures) -> Score:
    """Return the score that the clients' evaluations give."""
    scores, none = collected.total["scores"], "validation" not in collected.total["scores"]
    validation = None if none else ClientResults.from_sums("validation", scores["validation"])
    values = measures.values(trees.share(scores["test"]))
    test = to_plain_values({name: value[0] for name, value in values.items()})
    accuracy = test.pop(Accuracy.name)
    return Score(
        validation.mean(Accuracy.name) if validation else None,
        accuracy or 0.0,
        judges=tuple(sorted(collected.clients)),
        metrics=join_metrics(validation, test),
        results=_read_results(collected, measures),
    )


def _read_results(collected: Collected, measures: Measures) -> ClientResults:
    """Return each client's results on its own test samples; of a secure sum, the sums."""
    if not collected.answers:
        return ClientResults.from_sums("test", collected.total["scores"]["clients"])
    sums = [collected.answers[client]["scores"]["clients"] for client in sorted(collected.clients)]
    values = {
        metric.name: [
            float(each[metric.name]["sum"]) if each[metric.name]["clients"] else None
            for each in sums
        ]
        for metric in measures.numbers
    }
    return ClientResults.from_values("test", values, list_lower(measures))


def make_scorer(config: Config, agreement: Agreement) -> Callable[[Model], Score] | None:
    """Return a function that scores models on the server's test data; None if clients do it."""
    if config.deployment.evaluate == "clients":
        return None
    data = _load_server_data(config, agreement)
    network = build_model(config, data, pretrained=False)
    both = device_data(network, data)
    evaluator = Evaluator(LoopExecutor(network, both[0]), (), both, config.measures)

    def score(model: Model) -> Score:
        score = score_evaluation(evaluator(model), config.measures)
        return score._replace(validation=score.test)

    return score


def _load_server_data(config: Config, agreement: Agreement) -> Dataset:
    try:
        data = apply_agreement(load_data(config), agreement)
        shape = input_shape(agreement.example)
        require(data.shape == shape, f"{data.shape} is not the shape {shape}")
    except UserError as problem:
        raise UserError(
            "with deployment.evaluate = 'server' the server evaluates models on [data], "
            f"which must have the clients' classes and shape: {problem}"
        ) from problem
    return data


class BestRoundTracker:
    """Decides which round's model is the result."""

    def __init__(self, config: Config) -> None:
        self.config, self.selection = config, make_selection(config)
        evaluates = config.deployment.evaluate == "server"
        self.last_counts = evaluates or config.composed.keeps_models
        """With the server's scores the last model counts: the server has only one split and cannot
        both choose a round and measure the choice on it. It also counts where clients have models
        of their own, because they keep only the last."""

    def add_score(self, progress: Progress, score: Score) -> Progress:
        """Return the progress with the record of the round that waited for its score."""
        best, chosen = progress.best, self.selection
        if not chosen.last and chosen.find(score.validation, score.metrics) is None:
            message = "no client has a value of %s on its validation samples: use another select_by"
            logger.warning(message, chosen.metric)
        better = best is None or self.last_counts or self._is_better(score, best)
        progress = progress.add_score(score, better)
        emit(describe_score(progress.records[-1]))
        return progress

    def _is_better(self, score: Score, best: Best) -> bool:
        """Return whether a model replaces the best one.

        It does so too if other clients measured it, because such scores cannot be compared: a score
        may rise only because a low-scoring client was absent. With partial participation clients
        differ by design, and scores are compared.
        """
        comparable = self.config.training.participation < 1 or score.judges == best.judges
        return not comparable or self.selection.prefers(score, best)
