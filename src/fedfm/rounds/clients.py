"""The clients' side of a round: where they start, what they measure, train, send and keep.

A cohort of S clients, all tensors [S, ...]: simulated ones together, a real one alone.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fedfm.core import trees
from fedfm.core.client_states import ClientStates
from fedfm.core.ledger import BUFFERS, Traffic, count_held_floats, count_upload
from fedfm.core.trees import Tree
from fedfm.engine.cohort import TrainingResult
from fedfm.engine.jobs import TrainingJob
from fedfm.engine.objective import Objective
from fedfm.engine.profile import phase
from fedfm.methods.base import LocalRun, Model, Piece, Task
from fedfm.methods.contract import check_alike, check_one_each, check_pair
from fedfm.privacy.guard import Guard
from fedfm.rounds.exchange import Request, Sums
from fedfm.rounds.federation import Federation

PRIVATE = ("pieces", "change", "buffers")
"""What of a contribution makes one vector that privacy clips."""


class Participants(NamedTuple):
    """Who takes part in a round, with which pieces, from which models."""

    cohort: list[int]
    pieces: list[Piece]
    samples: list[Tensor]
    base: Model
    """The global model, leaves [1, ...]."""
    start: Model
    """Leaves [1, ...] where all start from the global model, [S, ...] where not."""
    clients: Tree
    """The clients' own state: a tree per piece, leaves [S, ...]."""


class Work(NamedTuple):
    """What the clients did; all leaves [S, ...]."""

    run: LocalRun
    losses: Tensor
    reports: Tree
    """The statistics that pieces take after training, a tree per piece."""
    up: Tree
    """What each piece sends beside the model."""
    kept: Tree
    """What each piece keeps."""

    def rows(self, which: slice | Tensor) -> "Work":
        """The work of some of the clients."""
        parts = (trees.rows(tree, which) for tree in (self.reports, self.up, self.kept))
        return Work(self.run.rows(which), self.losses[which], *parts)


def prepare_participants(ask: Request, fed: Federation) -> Participants:
    """Collect what the clients of the cohort have and kept."""
    pieces = fed.method.active(ask.round)
    kept = [trees.to_device(ask.kept.get(client), fed.task.device) for client in ask.cohort]
    return Participants(
        ask.cohort,
        pieces,
        [fed.samples[client] for client in ask.cohort],
        ask.model.map(trees.share),
        starting_models(ask.model, kept),
        {piece.name: piece_states(kept, piece, fed.task) for piece in pieces},
    )


def starting_models(shared: Model, kept: Sequence[Tree]) -> Model:
    """Where each client starts: its own model if it kept one, else the global model [...]."""
    if all("model" not in own for own in kept):
        return shared.map(trees.share)
    fresh = shared._asdict()
    own_models = [trees.complete(own.get("model", fresh), fresh) for own in kept]
    return Model(**trees.stack(own_models))


def piece_states(kept: Sequence[Tree], piece: Piece, task: Task) -> Tree:
    """What the clients keep for a piece [S, ...]; a newcomer has the initial state."""
    initial = piece.client_state(task)
    if not initial:
        return {}
    return trees.stack([trees.complete(own.get(piece.name, initial), initial) for own in kept])


def collect_reports(
    visit: Participants, fed: Federation, when: Literal["before", "after"], model: Model
) -> Tree:
    """The clients' statistics under a model, as they are sent: a tree [S, ...] per piece."""
    with phase("anchors"):
        return {
            piece.name: piece.report(fed.executor.measure(model, visit.samples, piece.statistic))
            for piece in visit.pieces
            if piece.measures == when
        }


def answer_measure(visit: Participants, fed: Federation, ask: Request) -> Sums:
    """The answer to "measure": the sum of the reports that are finite."""
    found = collect_reports(visit, fed, "before", visit.start)
    if fed.guard:
        found = fed.guard.report(found, ask.round, visit.cohort)
    fine = trees.is_finite(found)
    sound = trees.select_items(visit.cohort, fine)
    total = trees.sum_clients(found if sound == visit.cohort else trees.select(found, fine))
    return Sums(total, visit.cohort, sound, ask.kept, count_upload(found))


def make_job(visit: Participants, fed: Federation, ask: Request) -> TrainingJob:
    """The local training of the cohort."""
    received = trees.share(ask.down)
    held = {
        piece.name: piece.prepare(visit.clients[piece.name], visit.start, received[piece.name])
        for piece in visit.pieces
    }
    plans = [fed.plan(ask.round, client) for client in visit.cohort]
    return TrainingJob(visit.start, plans, Objective(visit.pieces, held), fed.training.sgd)


def answer_train(
    visit: Participants, fed: Federation, ask: Request, job: TrainingJob, outcome: TrainingResult
) -> Sums:
    """The answer to "train": the sum of what those clients send whose training was sound."""
    work = finish_training(visit, fed, ask, job, outcome)
    traffic, held = count_uploads(work, ask.sharing), count_held_floats_in_training(work, job)
    work, sound = drop_failures(visit, work)
    if not sound:
        return Sums({}, visit.cohort, [], ask.kept, traffic, held)
    with phase("aggregation"):
        if fed.guard:
            total, each = sum_private_contributions(visit, work, ask, sound, fed.guard)
            traffic = sum([each] * len(visit.cohort), Traffic())
        else:
            total = sum_contributions(visit, work, ask.sharing)
    kept = keep_states(ask, fed, sound, work)
    return Sums(total, visit.cohort, sound, kept, traffic, held)


def finish_training(
    visit: Participants, fed: Federation, ask: Request, job: TrainingJob, outcome: TrainingResult
) -> Work:
    """What each client sends and keeps after its training."""
    model, losses, steps = outcome
    samples = (count_samples(visit.samples) / ask.unit).to(next(trees.leaves(model.params)))
    if fed.guard:
        samples = torch.ones_like(samples)
    run = LocalRun(visit.start, model, steps, job.sgd, fed.method.pull, samples)
    received = trees.share(ask.down)
    up, kept = {}, {}
    for piece in visit.pieces:
        own = visit.clients[piece.name]
        found = piece.finish(own, run, received[piece.name])
        up[piece.name], state = check_pair(piece, "finish", found, "what goes up and what is kept")
        kept[piece.name] = check_alike(piece, "finish", state, own, "a client's state")
    return Work(run, losses, collect_reports(visit, fed, "after", model), up, kept)


def count_samples(samples: Sequence[Tensor]) -> Tensor:
    """n_i [S]."""
    return torch.tensor([len(own) for own in samples], dtype=torch.float64)


def count_uploads(work: Work, sharing: bool) -> Traffic:
    """What the clients send."""
    model = to_message(work.run.end) if sharing else {}
    return count_upload({"reports": work.reports, "pieces": work.up, "model": model})


def to_message(model: Model) -> Tree:
    """A model as it travels."""
    return {"params": model.params, BUFFERS: model.buffers}


def count_held_floats_in_training(work: Work, job: TrainingJob) -> int:
    """Floats of a client: its model and what the pieces prepared."""
    return count_held_floats({"model": {"params": work.run.end.params}, **job.objective.held})


def drop_failures(visit: Participants, work: Work) -> tuple[Work, list[int]]:
    """The work of those whose loss, model and messages are finite, and who they are."""
    sent = {"losses": work.losses, "reports": work.reports, "up": work.up}
    fine = trees.is_finite(sent | {"model": work.run.end._asdict()})
    sound = trees.select_items(visit.cohort, fine)
    if sound in ([], visit.cohort):
        return work, sound
    return work.rows(fine), sound


def sum_contributions(visit: Participants, work: Work, sharing: bool) -> Tree:
    """What the server needs of the clients, summed over them: leaves [...].

    samples: sum_i n_i; loss: sum_i n_i loss_i; reports and pieces: sums of what they send;
    and where models are shared weight: sum_i u_i; change: sum_i u_i (y_i - x); buffers.
    """
    samples, run = work.run.samples, work.run
    total = {
        "samples": samples.sum(),
        "loss": (samples * work.losses).sum(),
        "reports": trees.sum_clients(work.reports),
        "pieces": trees.sum_clients(work.up),
    }
    if not sharing:
        return total
    weights = samples
    for piece in visit.pieces:
        weights = check_one_each(piece, "weights", piece.weights(weights, run), len(samples))
    change = trees.tree_map(
        lambda y, x: trees.weighted_sum(weights, y - x), run.end.params, visit.base.params
    )
    buffers = sum_buffers(run.end.buffers, visit.base.buffers, samples)
    return total | {"weight": weights.sum(), "change": change, **buffers}


def sum_buffers(buffers: Tree, base: Tree, samples: Tensor) -> Tree:
    """Changes of buffers [S, ...] from `base` [1, ...], summed by the number of samples.

    Counters are not summed: the largest counts.
    """
    averaged = {
        name: leaf - base[name] for name, leaf in buffers.items() if leaf.is_floating_point()
    }
    counted = {name: leaf for name, leaf in buffers.items() if name not in averaged}
    return {
        "buffers": trees.tree_map(lambda leaf: trees.weighted_sum(samples, leaf), averaged),
        "counters": trees.tree_map(lambda leaf: leaf.amax(0), counted),
    }


def sum_private_contributions(
    visit: Participants, work: Work, ask: Request, clients: list[int], guard: Guard
) -> tuple[Tree, Traffic]:
    """`sum_contributions` of clients whose answers are clipped and noised, and what each one sends.

    All clients count alike; losses and counters stay at home.
    """
    each = [
        sum_contributions(visit, work.rows(slice(i, i + 1)), ask.sharing)
        for i in range(len(clients))
    ]
    alone = trees.stack(each)
    if ask.sharing:
        guard.check_weights(alone["weight"])
    update: Tree = {name: alone[name] for name in PRIVATE if name in alone}
    private = guard.update(update, ask.round, clients) | {
        "reports": guard.report(alone["reports"], ask.round, clients)
    }
    alike = {name: alone[name] for name in ("samples", "weight") if name in alone}
    return trees.sum_clients(private | alike), count_upload(trees.rows(private, slice(0, 1)))


def keep_states(ask: Request, fed: Federation, clients: list[int], work: Work) -> ClientStates:
    """What every client keeps after the round; local models only until they are shared.

    Where models are shared rarely, no piece keeps anything (`compose` sees to that).
    """
    if fed.method.share_every > 1 and ask.sharing:
        return ask.kept.clear()
    kept = {name: tree for name, tree in work.kept.items() if tree}
    if not ask.sharing:
        kept["model"] = work.run.end._asdict()
    if not kept:
        return ask.kept
    each = trees.unstack(kept, len(clients))
    return ask.kept.update(dict(zip(clients, each, strict=True)), ask.round + 1)
