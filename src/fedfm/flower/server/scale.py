"""In what unit clients count, so that numbers in a secure sum are neither lost nor too large."""

import torch

from fedfm.algorithms.base import LocalRun, Model
from fedfm.config import Config
from fedfm.data.batches import batch_sizes
from fedfm.rounds.federation import LocalTraining


def typical_weight(config: Config, model: Model, samples: float) -> float:
    """How much a client with so many samples counts, if that makes 1 unit of them."""
    protocol, method = config.protocol, config.composed
    size = max(1, round(samples * (1 - protocol.validation)))
    steps = protocol.epochs * len(batch_sizes(size, protocol.batch_size, protocol.keep_last))
    sgd, one = LocalTraining.of(protocol).sgd, torch.ones(1)
    run = LocalRun(model, model, torch.tensor([steps]), sgd, method.pull, one)
    weight = one
    for piece in method.pieces:
        weight = piece.weights(weight, run)
    return float(weight)
