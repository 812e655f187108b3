"""Local training of a cohort, stage by stage: most methods have one stage.

A training is a generator of jobs, so that the cohorts of several runs can train in step.
"""

from collections.abc import Generator
from typing import NamedTuple

from fedfm.core import trees
from fedfm.core.trees import Tree
from fedfm.engine.cohort import TrainingJob, TrainingResult
from fedfm.engine.objective import Objective
from fedfm.methods.base import Model, Piece, Stage
from fedfm.rounds.exchange import Request
from fedfm.rounds.federation import Federation
from fedfm.rounds.group import SECOND, ClientGroup


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
            own = Objective([stage.second], prepare_second(stage.second, group))
            held = held | {SECOND: own.held}
            second = (yield TrainingJob(group.second, plans, own, fed.training.sgd)).model
        else:
            trained = select_trained(stage, group, start)
            job = TrainingJob(start, plans, objective, fed.training.sgd, trained)
            shared = job, (yield job)
            start = shared[1].model
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


def make_objective(group: ClientGroup, fed: Federation, request: Request) -> Objective:
    """Return the local objective of the cohort, with what every piece holds."""
    received = trees.share(request.down)
    held = {
        piece.name: piece.prepare(group.clients[piece.name], group.received, received[piece.name])
        for piece in group.pieces
    }
    for piece in group.pieces:
        if type(piece).use_counts is not Piece.use_counts:
            held[piece.name] = held[piece.name] | piece.use_counts(fed.count_classes(group.cohort))
    return Objective(group.pieces, held)


def prepare_second(piece: Piece, group: ClientGroup) -> Tree:
    """Return what a piece holds while it trains second models."""
    return {piece.name: piece.prepare({}, group.base, {})}


def select_trained(stage: Stage, group: ClientGroup, start: Model) -> frozenset[str] | None:
    """Return the names of the parameters that take steps in a stage; None: all."""
    if stage.trains == "all":
        return None
    personal, shared = start.split(group.personal)
    return frozenset((personal if stage.trains == "personal" else shared).params)
