"""An executor that computes shapes only: what a round would send and keep, without training."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedfm.core import trees
from fedfm.core.sgd import Sgd
from fedfm.core.trees import Tree
from fedfm.data.batches import BatchPlan
from fedfm.engine.cohort import TrainingResult
from fedfm.engine.device_data import DeviceData
from fedfm.engine.forward import Statistic
from fedfm.engine.objective import Objective
from fedfm.methods.base import Batch, Model, Task


class ShapesExecutor:
    """Stands in for training on the meta device: every result has its shape and no values."""

    def __init__(self, task: Task) -> None:
        self.task = task

    def train(
        self, start: Model, plans: Sequence[BatchPlan], objective: Objective, sgd: Sgd
    ) -> TrainingResult:
        """Models, losses and steps of the right shape."""
        clients = len(plans)
        model = start.map(lambda tree: trees.repeat(tree, clients))
        return TrainingResult(model, torch.empty(clients, device="meta"), torch.ones(clients))

    def measure(
        self,
        model: Model,
        samples: Sequence[Tensor],
        statistic: Statistic,
        data: DeviceData | None = None,
    ) -> Tree:
        """The statistic of a batch of one sample per client."""
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
