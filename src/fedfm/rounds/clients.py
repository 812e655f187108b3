"""The clients' side of a round: where they start, what they measure, train, send and keep.

A cohort of S clients, all tensors [S, ...]: simulated ones together, a real one alone.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fedfm.core import trees
from fedfm.core.client_states import ClientStates
from fedfm.core.ledger import BUFFERS, Traffic, floats_held, sent_up
from fedfm.core.trees import Tree
from fedfm.engine.cohort import Outcome
from fedfm.engine.jobs import Job
from fedfm.engine.objective import Objective
from fedfm.engine.profile import phase
from fedfm.methods.base import LocalRun, Model, Piece, Task
from fedfm.methods.contract import alike, one_each, pair
from fedfm.privacy.guard import Guard
from fedfm.rounds.exchange import Ask, Sums
from fedfm.rounds.federation import Federation

PRIVATE = ("pieces", "change", "buffers")
"""What of a contribution makes one vector that privacy clips."""


class Visit(NamedTuple):
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


def begin(ask: Ask, fed: Federation) -> Visit:
    """Collect what the clients of the cohort have and kept."""
    pieces = fed.method.active(ask.round)
    kept = [trees.to_device(ask.kept.of(client), fed.task.device) for client in ask.cohort]
    return Visit(
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
    own_models = [trees.completed(own.get("model", fresh), fresh) for own in kept]
    return Model(**trees.stack(own_models))


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


def measured(visit: Visit, fed: Federation, ask: Ask) -> Sums:
    """The answer to "measure": the sum of the reports that are finite."""
    found = reports(visit, fed, "before", visit.start)
    if fed.guard:
        found = fed.guard.report(found, ask.round, visit.cohort)
    fine = trees.finite(found)
    sound = trees.chosen_items(visit.cohort, fine)
    total = trees.total(found if sound == visit.cohort else trees.chosen(found, fine))
    return Sums(total, visit.cohort, sound, ask.kept, sent_up(found))


def job(visit: Visit, fed: Federation, ask: Ask) -> Job:
    """The local training of the cohort."""
    down = trees.share(ask.down)
    held = {
        piece.name: piece.prepare(visit.clients[piece.name], visit.base, down[piece.name])
        for piece in visit.pieces
    }
    plans = [fed.plan(ask.round, client) for client in visit.cohort]
    return Job(visit.start, plans, Objective(visit.pieces, held), fed.training.sgd)


def trained(visit: Visit, fed: Federation, ask: Ask, job: Job, outcome: Outcome) -> Sums:
    """The answer to "train": the sum of what those clients send whose training was sound."""
    work = finished(visit, fed, ask, job, outcome)
    traffic, held = uploads(work, ask.sharing), held_while_training(work, job)
    work, sound = without_failures(visit, work)
    if not sound:
        return Sums({}, visit.cohort, [], ask.kept, traffic, held)
    with phase("aggregation"):
        if fed.guard:
            total, each = guarded(visit, work, ask, sound, fed.guard)
            traffic = sum([each] * len(visit.cohort), Traffic())
        else:
            total = contribution(visit, work, ask.sharing)
    kept = remembered(ask, fed, sound, work)
    return Sums(total, visit.cohort, sound, kept, traffic, held)


def finished(visit: Visit, fed: Federation, ask: Ask, job: Job, outcome: Outcome) -> Work:
    """What each client sends and keeps after its training."""
    model, losses, steps = outcome
    samples = (sizes(visit.samples) / ask.unit).to(next(trees.leaves(model.params)))
    if fed.guard:
        samples = torch.ones_like(samples)
    run = LocalRun(visit.start, model, steps, job.sgd, fed.method.pull, samples)
    received = trees.share(ask.down)
    up, kept = {}, {}
    for piece in visit.pieces:
        own = visit.clients[piece.name]
        found = piece.finish(own, run, received[piece.name])
        up[piece.name], state = pair(piece, "finish", found, "what goes up and what is kept")
        kept[piece.name] = alike(piece, "finish", state, own, "a client's state")
    return Work(run, losses, reports(visit, fed, "after", model), up, kept)


def sizes(samples: Sequence[Tensor]) -> Tensor:
    """n_i [S]."""
    return torch.tensor([len(own) for own in samples], dtype=torch.float64)


def uploads(work: Work, sharing: bool) -> Traffic:
    """What the clients send."""
    model = message(work.run.end) if sharing else {}
    return sent_up({"reports": work.reports, "pieces": work.up, "model": model})


def message(model: Model) -> Tree:
    """A model as it travels."""
    return {"params": model.params, BUFFERS: model.buffers}


def held_while_training(work: Work, job: Job) -> int:
    """Floats of a client: its model and what the pieces prepared."""
    return floats_held({"model": {"params": work.run.end.params}, **job.objective.held})


def without_failures(visit: Visit, work: Work) -> tuple[Work, list[int]]:
    """The work of those whose loss, model and messages are finite, and who they are."""
    sent = {"losses": work.losses, "reports": work.reports, "up": work.up}
    fine = trees.finite(sent | {"model": work.run.end._asdict()})
    sound = trees.chosen_items(visit.cohort, fine)
    if sound in ([], visit.cohort):
        return work, sound
    return work.rows(fine), sound


def contribution(visit: Visit, work: Work, sharing: bool) -> Tree:
    """What the server needs of the clients, summed over them: leaves [...].

    samples: sum_i n_i; loss: sum_i n_i loss_i; reports and pieces: sums of what they send;
    and where models are shared weight: sum_i u_i; change: sum_i u_i (y_i - x); buffers.
    """
    samples, run = work.run.samples, work.run
    total = {
        "samples": samples.sum(),
        "loss": (samples * work.losses).sum(),
        "reports": trees.total(work.reports),
        "pieces": trees.total(work.up),
    }
    if not sharing:
        return total
    weights = samples
    for piece in visit.pieces:
        weights = one_each(piece, "weights", piece.weights(weights, run), len(samples))
    change = trees.tree_map(
        lambda y, x: trees.weighted_sum(weights, y - x), run.end.params, visit.base.params
    )
    buffers = summed_buffers(run.end.buffers, visit.base.buffers, samples)
    return total | {"weight": weights.sum(), "change": change, **buffers}


def summed_buffers(buffers: Tree, base: Tree, samples: Tensor) -> Tree:
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


def guarded(
    visit: Visit, work: Work, ask: Ask, clients: list[int], guard: Guard
) -> tuple[Tree, Traffic]:
    """`contribution` of clients whose answers are clipped and noised, and what each one sends.

    All clients count alike; losses and counters stay at home.
    """
    each = [
        contribution(visit, work.rows(slice(i, i + 1)), ask.sharing) for i in range(len(clients))
    ]
    alone = trees.stack(each)
    if ask.sharing:
        guard.check_weights(alone["weight"])
    update: Tree = {name: alone[name] for name in PRIVATE if name in alone}
    private = guard.update(update, ask.round, clients) | {
        "reports": guard.report(alone["reports"], ask.round, clients)
    }
    alike = {name: alone[name] for name in ("samples", "weight") if name in alone}
    return trees.total(private | alike), sent_up(trees.rows(private, slice(0, 1)))


def remembered(ask: Ask, fed: Federation, clients: list[int], work: Work) -> ClientStates:
    """What every client keeps after the round; local models only until they are shared.

    Where models are shared rarely, no piece keeps anything (`compose` sees to that).
    """
    if fed.method.share_every > 1 and ask.sharing:
        return ask.kept.cleared()
    kept = {name: tree for name, tree in work.kept.items() if tree}
    if not ask.sharing:
        kept["model"] = work.run.end._asdict()
    if not kept:
        return ask.kept
    each = trees.unstack(kept, len(clients))
    return ask.kept.updated(dict(zip(clients, each, strict=True)), ask.round + 1)
