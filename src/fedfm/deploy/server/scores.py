"""Scores of a model, measured by the clients or on the server's data."""

from collections.abc import Callable, Sequence

from fedfm.config import Config
from fedfm.core.errors import UserError, require
from fedfm.core.trees import Tree
from fedfm.data.dataset import Dataset
from fedfm.deploy.agreement import Agreement, apply_agreement
from fedfm.engine.evaluation import Evaluator, accuracies
from fedfm.engine.executors import LoopExecutor
from fedfm.methods.base import Model
from fedfm.run.prepare import build_model, load_data
from fedfm.run.records import Score
from fedfm.run.simulation import device_data


def make_score(total: Tree, clients: Sequence[int]) -> Score:
    """Return the score that the sum of the clients' evaluations gives."""
    right, samples = float(total["test"]["right"]), float(total["test"]["samples"])
    mean = float(total["validation"]) / len(clients)
    return Score(mean, right / max(1.0, samples), judges=tuple(sorted(clients)))


def make_scorer(config: Config, agreement: Agreement) -> Callable[[Model], Score] | None:
    """Return a function that scores models on the server's test data; None if clients do it."""
    if config.deployment.evaluate == "clients":
        return None
    data = _load_server_data(config, agreement)
    network = build_model(config, data, pretrained=False)
    train, test = device_data(network, data)
    evaluator = Evaluator(LoopExecutor(network, train), (), test)

    def score(model: Model) -> Score:
        accuracy = float(accuracies(evaluator.count_test(model)))
        return Score(accuracy, accuracy)

    return score


def _load_server_data(config: Config, agreement: Agreement) -> Dataset:
    try:
        data = apply_agreement(load_data(config), agreement)
        require(data.shape == agreement.shape, f"{data.shape} is not the shape {agreement.shape}")
    except UserError as problem:
        raise UserError(
            "with deployment.evaluate = 'server' the server evaluates models on [data], "
            f"which must have the clients' classes and shape: {problem}"
        ) from problem
    return data
