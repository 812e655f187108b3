"""How good a model is, as its clients or the server's own data say."""

from collections.abc import Callable, Sequence

import torch

from fedfm.config import Config
from fedfm.core.errors import UserError, require
from fedfm.core.trees import Tree
from fedfm.data.dataset import Dataset
from fedfm.deploy.agreement import Agreement, localised
from fedfm.engine.evaluation import Evaluator, accuracies
from fedfm.engine.executors import LoopExecutor
from fedfm.methods.base import Model
from fedfm.run.prepare import build_model, load_data
from fedfm.run.records import Score
from fedfm.run.simulation import device_data

SCORES: Tree = {
    "validation": torch.empty((), dtype=torch.float64, device="meta"),
    "test": {
        name: torch.empty((), dtype=torch.int64, device="meta") for name in ("right", "samples")
    },
}
"""What a client says of a model: its validation accuracy, and how many tests it gets right."""


def score_of(total: Tree, clients: Sequence[int]) -> Score:
    """Return the score that the sum of clients' answers stands for."""
    right, samples = float(total["test"]["right"]), float(total["test"]["samples"])
    mean = float(total["validation"]) / len(clients)
    return Score(mean, right / max(1.0, samples), judges=tuple(sorted(clients)))


def judge(config: Config, agreement: Agreement) -> Callable[[Model], Score] | None:
    """The server's own judgement, on the test split of the config's data; None: clients judge."""
    if config.deployment.evaluate == "clients":
        return None
    data = _own(config, agreement)
    network = build_model(config, data)
    train, test = device_data(network, data)
    evaluate = Evaluator(LoopExecutor(network, train), (), test)

    def score(model: Model) -> Score:
        share = float(accuracies(evaluate.count_test(model)))
        return Score(share, share)

    return score


def _own(config: Config, agreement: Agreement) -> Dataset:
    """The server's data, as the clients have theirs."""
    try:
        data = localised(load_data(config), agreement)
        require(data.shape == agreement.shape, f"{data.shape} is not the shape {agreement.shape}")
    except UserError as problem:
        raise UserError(
            "with deployment.evaluate = 'server' the server measures models on the data of [data], "
            f"which must have the clients' classes and shape: {problem}"
        ) from problem
    return data
