"""An executor that computes shapes only, to count what a round would send and keep."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedfm.core import trees
from fedfm.core.trees import Tree
from fedfm.engine.cohort import TrainingJob, TrainingResult
from fedfm.engine.device_data import DeviceData
from fedfm.engine.forward import Statistic
from fedfm.methods.base import Batch, Model, Task


class ShapesExecutor:
    """Replaces training on the meta device: every result has its shape and no values."""

    def __init__(self, task: Task) -> None:
        self.task = task

    def train(self, job: TrainingJob) -> TrainingResult:
        """Return models, losses and steps of the right shape."""
        clients = len(job.plans)
        model = job.start.map(lambda tree: trees.repeat(tree, clients))
        loss = torch.empty(clients, device="meta")
        terms = dict.fromkeys(job.objective.terms, loss)
        return TrainingResult(model, loss, torch.ones(clients), terms, job.objective.moved)

    def measure(
        self,
        model: Model,
        samples: Sequence[Tensor],
        statistic: Statistic,
        data: DeviceData | None = None,
    ) -> Tree:
        """Return the statistic of a batch of one sample per client."""
        lead = (len(samples), 1)
        like = next(trees.leaves(model.params))
        labels = torch.empty(lead, dtype=torch.int64, device="meta")
        return statistic(
            Batch(
                like.new_empty(*lead, self.task.features),
                like.new_empty(*lead, self.task.classes),
                labels,
                labels.bool(),
            )
        )
