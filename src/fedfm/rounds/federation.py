"""The constant part of a federation: the clients' data, the method, the local training."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedfm.config.training import Training
from fedfm.core.errors import require
from fedfm.core.trees import leaves
from fedfm.data.augment import Augmentation
from fedfm.data.batches import BatchPlan, batch_sizes, plan_batches
from fedfm.engine.executors import Executor
from fedfm.engine.processes import ALONE, Processes
from fedfm.losses import DEFAULT_LOSS, TaskLoss
from fedfm.methods.base import Stage, Task
from fedfm.methods.composition import Method, uses_counts
from fedfm.optim import Clipping, Optimizer, Schedule
from fedfm.optim.schedules import CONSTANT
from fedfm.privacy.privacy_mechanism import PrivacyMechanism
from fedfm.rounds.sampling import draw_cohort, toss_coins


@dataclass(frozen=True)
class LocalTraining:
    """How a client trains in a round: epochs over its data with an optimizer."""

    epochs: int
    batch_size: int
    keep_last: bool
    optimizer: Optimizer
    clipping: Clipping | None = None
    schedule: Schedule = CONSTANT

    @staticmethod
    def from_config(training: Training) -> "LocalTraining":
        """Return the local training of a config."""
        batches = training.epochs, training.batch_size, training.keep_last
        steps = training.make_optimizer(), training.clipping, training.schedule
        return LocalTraining(*batches, *steps)

    def count_steps(self, samples: int) -> int:
        """Return the local steps in a round of a client with so many training samples."""
        return self.epochs * len(batch_sizes(samples, self.batch_size, self.keep_last))


@dataclass(frozen=True)
class Federation:
    """N clients with their samples, the method, and how each client trains."""

    task: Task
    method: Method
    executor: Executor
    samples: Sequence[Tensor]
    """The training samples [n_k] of every client k, as indices into the data."""
    training: LocalTraining
    participation: float
    augmentation: Augmentation | None
    """The random changes of training images."""
    seed: int
    sampling: Literal["fixed", "coin"] = "fixed"
    """How the clients of a round are drawn."""
    privacy: PrivacyMechanism | None = None
    """Clips and noises answers, if privacy is on."""
    task_loss: TaskLoss = DEFAULT_LOSS
    class_weights: Tensor | None = None
    """The classes' weights in the loss, for every client [N, C] or for all of them [1, C]."""
    rounds: int | None = None
    """The number of all rounds, which only methods with a conclusion need to know."""
    labels: Tensor | None = None
    """The labels [n] of the data; pieces that use class counts need them."""
    processes: Processes = ALONE
    """The processes that share the clients of a round."""

    def __post_init__(self) -> None:
        """Refuse a method that does not work with privacy or the data; pool samples if it does."""
        if self.privacy:
            self.privacy.check(self.method)
        counting = [piece.name for piece in self.method.pieces if uses_counts(piece)]
        require(
            not counting or self.labels is not None or self.task.device.type == "meta",
            f"{', '.join(counting)} needs each client's class counts, but the data have no labels: "
            "choose another method",
        )
        if self.method.pools_data and len(self.samples) > 1:
            object.__setattr__(self, "samples", [torch.cat([*self.samples]).sort().values])

    @property
    def population(self) -> int:
        """N."""
        return len(self.samples)

    @property
    def everyone(self) -> list[int]:
        """All clients."""
        return [*range(self.population)]

    def cohort(self, round: int) -> list[int]:
        """Return the clients that take part in a round (from 0), ascending."""
        everyone = range(self.population)
        if self.sampling == "coin":
            return toss_coins(everyone, self.participation, self.seed, round)
        return draw_cohort(everyone, self.participation, self.population, self.seed, round)

    def count_classes(self, cohort: Sequence[int]) -> Tensor:
        """Return how many training samples of each class the clients have [S, C]."""
        classes, like = self.task.classes, next(leaves(self.task.params))
        if self.labels is None:
            return like.new_zeros(len(cohort), classes)
        labels = self.labels.cpu()
        counts = [labels[self.samples[k]].bincount(minlength=classes) for k in cohort]
        return torch.stack(counts).to(like)

    def plan_stages(
        self, round: int, cohort: Sequence[int]
    ) -> Iterator[tuple[Stage, list[BatchPlan]]]:
        """Yield each stage of local training with the batches of every client in it.

        The epochs of a round follow each other from stage to stage. Second models are trained on
        the batches of the stage before.
        """
        stages, usual = self.method.stages, self.training.epochs
        total = sum(stage.epochs or usual for stage in stages if not stage.second)
        whole = [self.plan(round, client, total) for client in cohort]
        done, plans = 0, whole
        for stage in stages:
            if not stage.second:
                end = done + (stage.epochs or usual)
                plans = [
                    plan.part(done * plan.steps // total, end * plan.steps // total)
                    for plan in whole
                ]
                done = end
            yield stage, plans

    def plan(self, round: int, client: int, epochs: int | None = None) -> BatchPlan:
        """Return the batches of a client in a round."""
        return plan_batches(
            self.samples[client].numpy(),
            epochs=epochs or self.training.epochs,
            batch_size=self.training.batch_size,
            keep_last=self.training.keep_last,
            augmentation=self.augmentation,
            key=(self.seed, round, client),
        )
