"""In what unit clients count, so that numbers in a secure sum are neither lost nor too large."""

import torch

from fedfm.config import Config
from fedfm.data.batches import batch_sizes
from fedfm.methods.base import LocalRun, Model
from fedfm.rounds.federation import LocalTraining


def typical_weight(config: Config, model: Model, samples: float) -> float:
    """How much a client with so many samples counts, if that makes 1 unit of them."""
    training, method = config.training, config.composed
    size = max(1, round(samples * (1 - training.validation)))
    steps = training.epochs * len(batch_sizes(size, training.batch_size, training.keep_last))
    sgd, one = LocalTraining.from_config(training).sgd, torch.ones(1)
    run = LocalRun(model, model, torch.tensor([steps]), sgd, method.pull, one)
    weight = one
    for piece in method.pieces:
        weight = piece.weights(weight, run)
    return float(weight)
