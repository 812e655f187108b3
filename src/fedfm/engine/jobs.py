"""What an executor is asked to train, and several such jobs as one."""

from collections.abc import Sequence
from dataclasses import dataclass

from fedfm.core import trees
from fedfm.core.sgd import Sgd
from fedfm.core.trees import Tree
from fedfm.data.batches import BatchPlan
from fedfm.engine.cohort import TrainingResult
from fedfm.engine.executors import Executor
from fedfm.engine.objective import Objective
from fedfm.methods.base import Model


@dataclass(frozen=True)
class TrainingJob:
    """The local training of a cohort of S clients, all leaves [S, ...] or [1, ...]."""

    start: Model
    plans: Sequence[BatchPlan]
    objective: Objective
    sgd: Sgd

    def run_on(self, executor: Executor) -> TrainingResult:
        """The outcome of the training."""
        return executor.train(self.start, self.plans, self.objective, self.sgd)


def train_together(jobs: Sequence[TrainingJob], executor: Executor) -> list[TrainingResult]:
    """The outcomes of jobs that differ in clients and tensors alone, trained as one cohort."""
    if len(jobs) == 1:
        return [jobs[0].run_on(executor)]
    outcome = join(jobs).run_on(executor)
    results, first = [], 0
    for job in jobs:
        rows = slice(first, first + len(job.plans))
        results.append(
            TrainingResult(outcome.model.rows(rows), outcome.loss[rows], outcome.steps[rows])
        )
        first = rows.stop
    return results


def join(jobs: Sequence[TrainingJob]) -> TrainingJob:
    """The clients of all jobs one after another; what a job's clients share, each has now."""
    pieces, sgd = jobs[0].objective.pieces, jobs[0].sgd
    assert all((job.objective.pieces, job.sgd) == (pieces, sgd) for job in jobs)
    return TrainingJob(
        Model(
            _joined([job.start.params for job in jobs], jobs),
            _joined([job.start.buffers for job in jobs], jobs),
        ),
        [plan for job in jobs for plan in job.plans],
        Objective(pieces, _joined([job.objective.held for job in jobs], jobs)),
        sgd,
    )


def _joined(each: Sequence[Tree], jobs: Sequence[TrainingJob]) -> Tree:
    return trees.concat(
        [trees.repeat(tree, len(job.plans)) for tree, job in zip(each, jobs, strict=True)]
    )
