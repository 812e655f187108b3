"""Methods with a mistake in them, which show that the checks can fail."""

from fedfm.verify.mistakes import (
    drift,
    features,
    fedsa,
    heads,
    layers,
    losses,
    momentum,
    personal,
    rounds,
    server,
    sharpness,
)
from fedfm.verify.mistakes.planting import MISTAKES, Mistake

__all__ = [
    "MISTAKES",
    "Mistake",
    "drift",
    "features",
    "fedsa",
    "heads",
    "layers",
    "losses",
    "momentum",
    "personal",
    "rounds",
    "server",
    "sharpness",
]
