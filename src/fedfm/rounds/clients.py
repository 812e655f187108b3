"""The clients' side of a round: what they measure, send and keep.

All tensors are [S, ...]: simulated clients work together, a real client is a cohort of one.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fedfm.core import trees
from fedfm.core.client_states import ClientStates
from fedfm.core.ledger import BUFFERS, Traffic, count_held_floats, count_upload
from fedfm.core.trees import Tree
from fedfm.engine.profile import phase
from fedfm.methods.base import LocalRun, Model
from fedfm.methods.contract import check_alike, check_one_each, check_pair, overrides
from fedfm.privacy.privacy_mechanism import PrivacyMechanism
from fedfm.rounds.federation import Federation
from fedfm.rounds.group import OWN, SECOND, ClientGroup
from fedfm.rounds.messages import Request, Sums
from fedfm.rounds.stages import Trained

PRIVATE = ("pieces", "change", "buffers")
"""The parts of a contribution that privacy clips as one vector."""


class TrainedClients(NamedTuple):
    """The results of the clients' training; all leaves [S, ...]."""

    run: LocalRun
    losses: Tensor
    terms: Tree
    """The terms of the losses by name, if there are any besides the task's."""
    reports: Tree
    """The statistics that pieces take after training, a tree per piece."""
    up: Tree
    """What each piece sends besides the model."""
    kept: Tree
    """What each piece keeps, and the client's second model."""

    def rows(self, which: slice | Tensor) -> "TrainedClients":
        """Return the work of some of the clients."""
        dicts = (self.terms, self.reports, self.up, self.kept)
        parts = (trees.rows(tree, which) for tree in dicts)
        return TrainedClients(self.run.rows(which), self.losses[which], *parts)


def collect_reports(
    group: ClientGroup, fed: Federation, when: Literal["before", "after", "end"], model: Model
) -> Tree:
    """Return the clients' reports under a model: a tree [S, ...] per piece."""
    with phase("anchors"):
        return {
            piece.name: piece.report(fed.executor.measure(model, group.samples, piece.statistic))
            for piece in group.pieces
            if piece.measures == when
        }


def answer_measure(group: ClientGroup, fed: Federation, request: Request) -> Sums:
    """Answer "measure": the sum of the reports that are finite."""
    reports = collect_reports(group, fed, request.when, group.start)
    if fed.privacy:
        reports = fed.privacy.report(reports, request.round, group.cohort)
    finite = trees.is_finite(reports)
    counted = trees.select_items(group.cohort, finite)
    total = trees.sum_clients(reports if counted == group.cohort else trees.select(reports, finite))
    return Sums(total, group.cohort, counted, request.kept, count_upload(reports))


def answer_train(group: ClientGroup, fed: Federation, request: Request, trained: Trained) -> Sums:
    """Answer "train": the sum of the contributions of the clients that did not diverge."""
    work = finish_training(group, fed, request, trained)
    traffic = count_uploads(group, work, request.sharing)
    models = {"model": {"params": work.run.end.params}}
    if trained.second:
        models[SECOND] = {"params": trained.second.params}
    if trained.job.objective.perturbing:
        models["with offset"] = {"params": trees.copy_shapes(work.run.end.params)}
    held = count_held_floats(models | {"held": trained.held})
    work, clients = drop_failures(group, work)
    if not clients:
        return Sums({}, group.cohort, [], request.kept, traffic, held)
    with phase("aggregation"):
        if fed.privacy:
            total, upload = sum_private_contributions(group, work, request, clients, fed.privacy)
            traffic = sum([upload] * len(group.cohort), Traffic())
        else:
            total = sum_contributions(group, work, request.sharing)
    kept = keep_states(request, fed, clients, work, group)
    return Sums(total, group.cohort, clients, kept, traffic, held)


def finish_training(
    group: ClientGroup, fed: Federation, request: Request, trained: Trained
) -> TrainedClients:
    """Return what each client sends and keeps after its training."""
    model, losses, steps, terms, moved = trained.result
    samples = (count_samples(group.samples) / request.unit).to(next(trees.leaves(model.params)))
    if fed.privacy:
        samples = torch.ones_like(samples)
    how = trained.job.optimizer, fed.method.pull, samples, trained.job.factors
    run = LocalRun(group.start, model, steps, *how)
    received = trees.share(request.down)
    up, kept = {}, {}
    for piece in group.pieces:
        old = group.clients[piece.name]
        piece_run = run._replace(moved=moved.get(piece.name, {}))
        pair = piece.finish(old, piece_run, received[piece.name])
        up[piece.name], state = check_pair(piece, "finish", pair, "what is sent and what is kept")
        kept[piece.name] = check_alike(piece, "finish", state, old, "a client's state")
    if trained.second:
        kept[SECOND] = trained.second._asdict()
    return TrainedClients(run, losses, terms, collect_reports(group, fed, "after", model), up, kept)


def count_samples(samples: Sequence[Tensor]) -> Tensor:
    """Return n_i [S]."""
    return torch.tensor([len(indices) for indices in samples], dtype=torch.float64)


def count_uploads(group: ClientGroup, work: TrainedClients, sharing: bool) -> Traffic:
    """Count what the clients send."""
    model = to_message(group.select_sent(work.run.end)) if sharing else {}
    return count_upload({"reports": work.reports, "pieces": work.up, "model": model})


def to_message(model: Model) -> Tree:
    """Return a model as a message."""
    return {"params": model.params, BUFFERS: model.buffers}


def drop_failures(group: ClientGroup, work: TrainedClients) -> tuple[TrainedClients, list[int]]:
    """Return the work of the clients with finite loss, model and messages, and who they are."""
    second = {SECOND: work.kept[SECOND]} if SECOND in work.kept else {}
    sent = {"losses": work.losses, "reports": work.reports, "up": work.up}
    finite = trees.is_finite(sent | {"model": work.run.end._asdict()} | second)
    clients = trees.select_items(group.cohort, finite)
    if clients in ([], group.cohort):
        return work, clients
    return work.rows(finite), clients


def sum_contributions(group: ClientGroup, work: TrainedClients, sharing: bool) -> Tree:
    """Return the sums over clients that the server needs: leaves [...].

    samples: sum_i n_i; loss: sum_i n_i loss_i, and the same of its terms; reports and pieces: sums
    of what they send. If models are shared, also weight: sum_i u_i; change: sum_i u_i (y_i - x);
    buffers.
    """
    samples, run = work.run.samples, work.run
    end, base = group.select_sent(run.end), group.select_sent(group.base)
    total = {
        "samples": samples.sum(),
        "loss": (samples * work.losses).sum(),
        "terms": {name: (samples * term).sum() for name, term in work.terms.items()},
        "reports": trees.sum_clients(work.reports),
        "pieces": trees.sum_clients(work.up),
    }
    if not sharing:
        return total
    weights = samples
    for piece in group.pieces:
        weights = check_one_each(piece, "weights", piece.weights(weights, run), len(samples))
    change = sum_changes(group, work, weights, end.params, base.params)
    buffers = sum_buffers(end.buffers, base.buffers, samples)
    return total | {"weight": weights.sum(), "change": change, **buffers}


def sum_changes(
    group: ClientGroup, work: TrainedClients, weights: Tensor, end: Tree, base: Tree
) -> Tree:
    """Sum the changes of parameters, or what pieces send in their place, by weights [S].

    Without such a piece only one leaf's changes are in memory at a time.
    """
    amending = [piece for piece in group.pieces if overrides(piece, "amend")]
    if not amending:
        return trees.tree_map(lambda y, x: trees.weighted_sum(weights, y - x), end, base)
    change = trees.tree_map(torch.sub, end, base)
    for piece in amending:
        amended = piece.amend(change, work.kept[piece.name])
        change = check_alike(piece, "amend", amended, change, "a change")
    return trees.tree_map(lambda leaf: trees.weighted_sum(weights, leaf), change)


def sum_buffers(buffers: Tree, base: Tree, samples: Tensor) -> Tree:
    """Sum the changes of buffers [S, ...] from `base` [1, ...], weighted by samples.

    Counters are not summed; the largest is taken.
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
    group: ClientGroup,
    work: TrainedClients,
    request: Request,
    clients: list[int],
    privacy: PrivacyMechanism,
) -> tuple[Tree, Traffic]:
    """Sum clipped and noised contributions; also return what each client sends.

    All clients have equal weight. Losses and counters are not sent.
    """
    contributions = [
        sum_contributions(group, work.rows(slice(i, i + 1)), request.sharing)
        for i in range(len(clients))
    ]
    alone = trees.stack(contributions)
    if request.sharing:
        privacy.check_weights(alone["weight"])
    update: Tree = {name: alone[name] for name in PRIVATE if name in alone}
    private = privacy.update(update, request.round, clients) | {
        "reports": privacy.report(alone["reports"], request.round, clients)
    }
    public = {name: alone[name] for name in ("samples", "weight") if name in alone}
    return trees.sum_clients(private | public), count_upload(trees.rows(private, slice(0, 1)))


def keep_states(
    request: Request, fed: Federation, clients: list[int], work: TrainedClients, group: ClientGroup
) -> ClientStates:
    """Return what every client keeps after the round: its leaves of the model, and its states.

    Leaves that are shared are kept only until they are.

    If models are not shared in every round, no piece keeps a state (`compose` ensures that).
    """
    if fed.method.share_every > 1 and request.sharing:
        return request.kept.clear()
    kept = {name: tree for name, tree in work.kept.items() if tree}
    trained = work.run.end.split(group.frozen)[1]
    personal = trained.split(group.personal)[0] if request.sharing else trained
    if personal.params or personal.buffers:
        kept[OWN] = personal._asdict()
    if not kept:
        return request.kept
    states = trees.unstack(kept, len(clients))
    return request.kept.update(dict(zip(clients, states, strict=True)), request.round + 1)
