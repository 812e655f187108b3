"""Train several jobs as one cohort."""

from collections.abc import Sequence

from fedfm.core import trees
from fedfm.core.trees import Tree
from fedfm.engine.cohort import TrainingJob, TrainingResult
from fedfm.engine.executors import Executor
from fedfm.engine.objective import Objective
from fedfm.methods.base import Model


def train_together(jobs: Sequence[TrainingJob], executor: Executor) -> list[TrainingResult]:
    """Return the results of jobs that differ in clients and tensors alone, trained as one."""
    if len(jobs) == 1:
        return [executor.train(jobs[0])]
    model, loss, steps = executor.train(join_jobs(jobs))
    results, first = [], 0
    for job in jobs:
        rows = slice(first, first + len(job.plans))
        results.append(TrainingResult(model.rows(rows), loss[rows], steps[rows]))
        first = rows.stop
    return results


def join_jobs(jobs: Sequence[TrainingJob]) -> TrainingJob:
    """Put the clients of all jobs one after another; what a job's clients share is copied."""
    pieces, sgd = jobs[0].objective.pieces, jobs[0].sgd
    assert all((job.objective.pieces, job.sgd) == (pieces, sgd) for job in jobs)
    return TrainingJob(
        Model(
            _join_trees([job.start.params for job in jobs], jobs),
            _join_trees([job.start.buffers for job in jobs], jobs),
        ),
        [plan for job in jobs for plan in job.plans],
        Objective(pieces, _join_trees([job.objective.held for job in jobs], jobs)),
        sgd,
    )


def _join_trees(per_job: Sequence[Tree], jobs: Sequence[TrainingJob]) -> Tree:
    return trees.concat(
        [trees.repeat(tree, len(job.plans)) for tree, job in zip(per_job, jobs, strict=True)]
    )
