"""The clients' side of a round: where they start, what they measure, train, send and keep."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from torch import Tensor

from fedfm.algorithms.base import LocalRun, Model, Piece, Task
from fedfm.core import trees
from fedfm.core.client_states import ClientStates
from fedfm.core.federation import Federation
from fedfm.core.ledger import floats_held
from fedfm.core.state import State
from fedfm.core.trees import Tree
from fedfm.engine.cohort import Outcome
from fedfm.engine.jobs import Job
from fedfm.engine.objective import Objective
from fedfm.engine.profile import phase


class Visit(NamedTuple):
    """Who takes part in a round, with which pieces, from which models."""

    cohort: list[int]
    pieces: list[Piece]
    samples: list[Tensor]
    shares: Tensor
    start: Model
    """Leaves [1, ...] where all start from the global model, [S, ...] where not."""
    downloads: int
    """How many clients have to be sent the global model."""
    clients: Tree
    """The clients' own state: a tree per piece, leaves [S, ...]."""
    sharing: bool
    """Whether models go up at the end."""


def starting_models(shared: Model, kept: Sequence[Tree]) -> tuple[Model, int]:
    """Where each client starts: its own model if it kept one, else the global model [...].

    Also how many of them have to be sent the global model.
    """
    downloads = sum("model" not in own for own in kept)
    if downloads == len(kept):
        return shared.map(trees.share), downloads
    fresh = shared._asdict()
    own_models = [trees.completed(own.get("model", fresh), fresh) for own in kept]
    return Model(**trees.stack(own_models)), downloads


def piece_states(kept: Sequence[Tree], piece: Piece, task: Task) -> Tree:
    """What the clients keep for a piece [S, ...]; a newcomer has the initial state."""
    initial = piece.client_state(task)
    if not initial:
        return {}
    return trees.stack([trees.completed(own.get(piece.name, initial), initial) for own in kept])


def reports(visit: Visit, fed: Federation, when: Literal["before", "after"], model: Model) -> Tree:
    """The clients' statistics under a model, as they are sent: a tree [S, ...] per piece."""
    with phase("anchors"):
        return {
            piece.name: piece.report(fed.executor.measure(model, visit.samples, piece.statistic))
            for piece in visit.pieces
            if piece.measures == when
        }


class Work(NamedTuple):
    """What the clients did: models, losses [S], messages and states per piece [S, ...]."""

    model: Model
    losses: Tensor
    up: Tree
    kept: Tree
    held: int


def job(visit: Visit, fed: Federation, round: int, received: Tree) -> Job:
    """The local training of the cohort, given the pieces' messages [1, ...]."""
    held = {
        piece.name: piece.prepare(visit.clients[piece.name], visit.start, received[piece.name])
        for piece in visit.pieces
    }
    plans = [fed.plan(round, client) for client in visit.cohort]
    return Job(visit.start, plans, Objective(visit.pieces, held), fed.training.sgd)


def finished(visit: Visit, fed: Federation, received: Tree, job: Job, outcome: Outcome) -> Work:
    """What each client sends and keeps after its training."""
    model, losses, steps = outcome
    run = LocalRun(visit.start, model, steps, job.sgd, fed.method.pull)
    up, kept = {}, {}
    for piece in visit.pieces:
        sent, state = piece.finish(visit.clients[piece.name], run, received[piece.name])
        up[piece.name], kept[piece.name] = sent, state
    memory = floats_held({"model": {"params": model.params}, **job.objective.held})
    return Work(model, losses, up, kept, memory)


def remembered(state: State, fed: Federation, visit: Visit, work: Work) -> ClientStates:
    """What every client keeps after the round; local models only until they are shared.

    Where models are shared rarely, no piece keeps anything (`compose` sees to that).
    """
    if fed.method.share_every > 1 and visit.sharing:
        return state.clients.cleared()
    kept = {name: tree for name, tree in work.kept.items() if tree}
    if not visit.sharing:
        kept["model"] = work.model._asdict()
    if not kept:
        return state.clients
    each = trees.unstack(kept, len(visit.cohort))
    return state.clients.updated(dict(zip(visit.cohort, each, strict=True)), state.round + 1)
