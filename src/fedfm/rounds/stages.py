"""Local training of a cohort, stage by stage: most methods have one stage.

A training is a generator of jobs, so that the cohorts of several runs can train in step.
"""

from collections.abc import Generator
from dataclasses import replace
from typing import NamedTuple

import torch

from fedfm.core import trees
from fedfm.core.trees import Tree
from fedfm.data.batches import BatchPlan
from fedfm.engine.cohort import TrainingJob, TrainingResult
from fedfm.engine.objective import TASK_HELD, Objective
from fedfm.methods.base import Model, Piece, Stage
from fedfm.methods.composition import uses_counts
from fedfm.rounds.federation import Federation
from fedfm.rounds.group import SECOND, ClientGroup
from fedfm.rounds.messages import Request


class Trained(NamedTuple):
    """The result of all stages of a cohort's training."""

    job: TrainingJob
    """The last stage that trained the model which is shared."""
    result: TrainingResult
    """The result of that stage."""
    second: Model | None
    """The second models [S, ...], if clients have one."""
    held: Tree
    """What clients held in any stage."""


LocalTrainings = Generator[TrainingJob, TrainingResult, Trained]
"""Yields the job of each stage and receives its result."""


def train_stages(group: ClientGroup, fed: Federation, request: Request) -> LocalTrainings:
    """Train the cohort stage by stage: yield jobs, receive their results."""
    objective, start, second = make_objective(group, fed, request), group.start, None
    held, shared = objective.held, None
    for stage, plans in fed.plan_stages(request.round, group.cohort):
        if stage.second:
            second_objective = make_second_objective(stage.second, group, fed)
            held = held | {SECOND: second_objective.held}
            second = (
                yield make_job(group.second, plans, second_objective, fed, request.round)
            ).model
        else:
            job = make_job(start, plans, objective, fed, request.round)
            job = replace(job, trained=select_trained(stage, group, start))
            shared = job, (yield job)
            start, objective = shared[1].model, objective.replace_moved(shared[1].moved)
    assert shared is not None, "some stage trains the model that is shared"
    return Trained(*shared, second, held)


def send(training: LocalTrainings, result: TrainingResult) -> TrainingJob | Trained:
    """Give a training the result of its last job; return the next job, or the result of all."""
    try:
        return training.send(result)
    except StopIteration as end:
        trained: Trained = end.value
        return trained


def train_locally(group: ClientGroup, fed: Federation, request: Request) -> Trained:
    """Train a cohort by itself, through all stages."""
    training = train_stages(group, fed, request)
    step: TrainingJob | Trained = next(training)
    while isinstance(step, TrainingJob):
        step = send(training, fed.executor.train(step))
    return step


def make_job(
    start: Model, plans: list[BatchPlan], objective: Objective, fed: Federation, round: int
) -> TrainingJob:
    """Return the training of models by the plans, with the learning rates of the round."""
    training = fed.training
    factors = training.schedule.factors(round, max(plan.steps for plan in plans))
    return TrainingJob(start, plans, objective, training.optimizer, training.clipping, factors)


def make_objective(group: ClientGroup, fed: Federation, request: Request) -> Objective:
    """Return the local objective of the cohort, with what every piece holds."""
    received = trees.share(request.down)
    held = {
        piece.name: piece.prepare(group.clients[piece.name], group.received, received[piece.name])
        for piece in group.pieces
    }
    for piece in group.pieces:
        if uses_counts(piece):
            held[piece.name] = held[piece.name] | piece.use_counts(fed.count_classes(group.cohort))
        moving = {key: held[piece.name][key] for key in sorted(piece.moves)}
        held[piece.name] = held[piece.name] | trees.expand(moving, len(group.cohort))
    return Objective(group.pieces, held | hold_class_weights(group, fed), fed.task_loss)


def make_second_objective(piece: Piece, group: ClientGroup, fed: Federation) -> Objective:
    """Return the objective of second models, with what their one piece holds."""
    held = prepare_second(piece, group) | hold_class_weights(group, fed)
    return Objective([piece], held, fed.task_loss)


def hold_class_weights(group: ClientGroup, fed: Federation) -> Tree:
    """Return the classes' weights in the clients' losses, if there are any."""
    if fed.class_weights is None:
        return {}
    weights = fed.class_weights.to(next(trees.leaves(group.start.params)))
    return {TASK_HELD: trees.rows({"weights": weights}, torch.tensor(group.cohort))}


def prepare_second(piece: Piece, group: ClientGroup) -> Tree:
    """Return what a piece holds while it trains second models."""
    return {piece.name: piece.prepare({}, group.base, {})}


def select_trained(stage: Stage, group: ClientGroup, start: Model) -> frozenset[str] | None:
    """Return the names of the parameters that take steps in a stage; None: all."""
    if stage.trains == "all":
        return None
    personal, shared = start.split(group.personal)
    return frozenset((personal if stage.trains == "personal" else shared).params)
