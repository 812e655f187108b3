"""Scores of a model, measured by the clients or on the server's data."""

from collections.abc import Callable

from fedfm.config import Config
from fedfm.core import trees
from fedfm.core.errors import UserError, require
from fedfm.core.inputs import input_shape
from fedfm.data.dataset import Dataset
from fedfm.deploy.agreement import Agreement, apply_agreement
from fedfm.deploy.server.sums import Collected
from fedfm.engine.evaluation import Evaluator
from fedfm.engine.executors import LoopExecutor
from fedfm.methods.base import Model
from fedfm.metrics import Accuracy
from fedfm.metrics.measures import Measures, to_plain_values
from fedfm.run.client_results import ClientResults
from fedfm.run.prepare import build_model, load_data
from fedfm.run.records import Score
from fedfm.run.scores import join_metrics, list_lower, score_evaluation
from fedfm.run.simulation import device_data


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
