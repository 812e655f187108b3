"""Local optimizers, one file each, with gradient clipping and learning-rate schedules.

A new optimizer is a file and a line in `OPTIMIZERS`. Its settings are fields of `Training`, as
those of SGD and Adam are.
"""

from fedfm.optim.adam import Adam, AdamW
from fedfm.optim.base import Optimizer
from fedfm.optim.clipping import Clipping
from fedfm.optim.schedules import Schedule
from fedfm.optim.sgd import Sgd

OPTIMIZERS: dict[str, type[Optimizer]] = {"sgd": Sgd, "adam": Adam, "adamw": AdamW}
"""The optimizers by their name in configs."""

__all__ = ["OPTIMIZERS", "Adam", "AdamW", "Clipping", "Optimizer", "Schedule", "Sgd"]
