"""What a round needs and never changes: the clients' data, the method, the local training."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from fedfm.algorithms.base import Method, Task
from fedfm.core.rng import generator
from fedfm.core.sgd import Sgd
from fedfm.data.batches import Plan, plan
from fedfm.engine.executors import Executor
from fedfm.protocol import Protocol


@dataclass(frozen=True)
class LocalTraining:
    """How a client trains in a round: epochs over its data with SGD."""

    epochs: int
    batch_size: int
    keep_last: bool
    sgd: Sgd

    @staticmethod
    def of(protocol: Protocol) -> "LocalTraining":
        """As a protocol has it."""
        sgd = Sgd(protocol.lr, protocol.momentum, protocol.weight_decay)
        return LocalTraining(protocol.epochs, protocol.batch_size, protocol.keep_last, sgd)


@dataclass(frozen=True)
class Federation:
    """N clients with their samples, the method they run, and how each of them trains."""

    task: Task
    method: Method
    executor: Executor
    samples: Sequence[Tensor]
    """The training samples [n_k] of every client k, as indices into the data."""
    training: LocalTraining
    participation: float
    augmented: bool
    seed: int

    @property
    def population(self) -> int:
        """N."""
        return len(self.samples)

    def cohort(self, round: int) -> list[int]:
        """The clients that take part in a round (from 0), ascending."""
        everyone = self.population
        size = max(1, int(np.floor(self.participation * everyone + 0.5)))
        if size == everyone:
            return list(range(everyone))
        chosen = generator(self.seed, "cohort", round).choice(everyone, size, replace=False)
        return sorted(chosen.tolist())

    def plan(self, round: int, client: int) -> Plan:
        """A client's local training in a round."""
        return plan(
            self.samples[client].numpy(),
            epochs=self.training.epochs,
            batch_size=self.training.batch_size,
            keep_last=self.training.keep_last,
            augmented=self.augmented,
            key=(self.seed, round, client),
        )
