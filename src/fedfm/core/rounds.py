"""The round: the only place where clients and server meet.

model down -> statistics "before" up (a handshake of their own, if a piece takes them)
-> the pieces' messages down -> local training -> statistics "after" and models up
-> aggregation weights -> mean change -> the server's step -> State
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fedfm.algorithms.base import LocalRun, Model, Piece, Task
from fedfm.core import trees
from fedfm.core.errors import UserError
from fedfm.core.federation import Federation
from fedfm.core.ledger import BUFFERS, Ledger, Traffic, floats_held
from fedfm.core.state import State
from fedfm.core.trees import Tree
from fedfm.engine.cohort import Objective


class Diverged(UserError):
    """The training of every client of a round ended in NaN or infinity."""

    def __init__(self, clients: Sequence[int], round: int) -> None:
        named = ", ".join(map(str, clients[:5])) + (", ..." if len(clients) > 5 else "")
        super().__init__(
            f"round {round + 1}: the training of every client diverged (clients {named}): NaN or "
            "infinite loss or weights.\nTry a smaller lr or a weaker method; the checkpoint before "
            "this round is kept."
        )


@dataclass(frozen=True)
class RoundLog:
    """What a round cost and how the training went, client by client."""

    cohort: list[int]
    """The clients that took part and are in the average."""
    shares: Tensor
    """p_i [S], each client's share of the cohort's data."""
    losses: Tensor
    """The mean local loss of each client [S]."""
    failed: list[int]
    """Clients that were left out, since their loss, model or message was not finite."""
    traffic: Traffic
    held: int
    """Floats a client holds while it trains: its model and what the pieces prepared."""


def run_round(state: State, fed: Federation) -> tuple[State, RoundLog]:
    """One communication round: a pure function of the state."""
    visit, server, ledger = begin(state, fed), state.server, Ledger()
    ledger.down(message(state.model), visit.downloads)
    if any(piece.measures == "before" for piece in visit.pieces):
        report = reports(visit, fed, "before", visit.start)
        server = absorbed(visit, server, report)
        ledger.up(report)
        ledger.handshake()

    down = {piece.name: piece.download(server[piece.name]) for piece in visit.pieces}
    ledger.down(down, len(visit.cohort))
    work = train(visit, fed, state.round, down)

    report = reports(visit, fed, "after", work.model)
    ledger.up({"reports": report, "pieces": work.up})
    if visit.sharing:
        ledger.up(message(work.model))
    ledger.handshake()
    everyone = visit.cohort
    visit, work = without_failures(visit, work, state.round)
    server = absorbed(visit, server, report)
    if visit.sharing:
        server, model = aggregated(visit, fed, server, state.model, work)
    else:
        model = state.model
    failed = sorted(set(everyone) - set(visit.cohort))
    log = RoundLog(visit.cohort, visit.shares, work.losses, failed, ledger.traffic, work.held)
    return State(state.round + 1, model, server, remembered(state, visit, work)), log


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


def begin(state: State, fed: Federation) -> Visit:
    """Choose the cohort and collect what its clients kept."""
    cohort, pieces = fed.cohort(state.round), fed.method.active(state.round)
    samples = [fed.samples[client] for client in cohort]
    start, downloads = starting_models(state, cohort)
    shares = data_shares(samples).to(next(trees.leaves(start.params)))
    clients = {p.name: client_states(state, cohort, p, fed.task) for p in pieces}
    sharing = (state.round + 1) % fed.method.share_every == 0
    return Visit(cohort, pieces, samples, shares, start, downloads, clients, sharing)


def data_shares(samples: Sequence[Tensor]) -> Tensor:
    """p_i = n_i / sum_j n_j over the cohort [S]."""
    sizes = torch.tensor([len(own) for own in samples], dtype=torch.float64)
    return sizes / sizes.sum()


def starting_models(state: State, cohort: Sequence[int]) -> tuple[Model, int]:
    """Where each client starts: its own model if it kept one, else the global model."""
    own = [state.clients.get(client, {}).get("model") for client in cohort]
    if not any(own):
        return state.model.map(trees.share), len(cohort)
    shared = state.model._asdict()
    return Model(**trees.stack([mine or shared for mine in own])), own.count(None)


def client_states(state: State, cohort: Sequence[int], piece: Piece, task: Task) -> Tree:
    """What the cohort's clients keep for a piece [S, ...]; a newcomer has the initial state."""
    initial = piece.client_state(task)
    if not initial:
        return {}
    return trees.stack([state.clients.get(k, {}).get(piece.name, initial) for k in cohort])


def reports(visit: Visit, fed: Federation, when: Literal["before", "after"], model: Model) -> Tree:
    """The clients' statistics under a model, as they are sent: a tree [S, ...] per piece."""
    return {
        piece.name: piece.report(fed.executor.measure(model, visit.samples, piece.statistic))
        for piece in visit.pieces
        if piece.measures == when
    }


def absorbed(visit: Visit, server: Tree, report: Tree) -> Tree:
    """The server's state after it received the sum of the reports that are finite."""
    for piece in visit.pieces:
        if piece.name in report:
            sound = chosen(report[piece.name], trees.finite(report[piece.name]))
            clients = len(next(trees.leaves(sound)))
            state = piece.absorb(server[piece.name], trees.total(sound), clients)
            server = server | {piece.name: state}
    return server


def chosen(tree: Tree, which: Tensor) -> Tree:
    """The rows [S, ...] of the clients for which `which` [S] holds."""
    if which.is_meta or bool(which.all()):
        return tree
    return trees.tree_map(lambda leaf: leaf[which], tree)


class Work(NamedTuple):
    """What the clients did: models, losses [S], messages and states per piece [S, ...]."""

    model: Model
    losses: Tensor
    up: Tree
    kept: Tree
    held: int


def train(visit: Visit, fed: Federation, round: int, down: Tree) -> Work:
    """Local training, and what each client sends and keeps after it."""
    received = trees.share(down)
    held = {
        piece.name: piece.prepare(visit.clients[piece.name], visit.start, received[piece.name])
        for piece in visit.pieces
    }
    plans = [fed.plan(round, client) for client in visit.cohort]
    objective = Objective(visit.pieces, held)
    model, losses, steps = fed.executor.train(visit.start, plans, objective, fed.training.sgd)
    run = LocalRun(visit.start, model, steps, fed.training.sgd, fed.method.pull)
    up, kept = {}, {}
    for piece in visit.pieces:
        sent, state = piece.finish(visit.clients[piece.name], run, received[piece.name])
        up[piece.name], kept[piece.name] = sent, state
    memory = floats_held({"model": {"params": model.params}, **held})
    return Work(model, losses, up, kept, memory)


def without_failures(visit: Visit, work: Work, round: int) -> tuple[Visit, Work]:
    """Leave out clients whose loss, model or message is not finite; stop if none is left.

    Those clients keep the state they had, and the others' data shares add up to 1 again.
    """
    fine = trees.finite({"losses": work.losses, "model": work.model._asdict(), "up": work.up})
    if fine.is_meta or bool(fine.all()):
        return visit, work
    left = fine.nonzero().flatten().tolist()
    if not left:
        raise Diverged(visit.cohort, round)
    samples = [visit.samples[i] for i in left]
    fewer = visit._replace(
        cohort=[visit.cohort[i] for i in left],
        samples=samples,
        shares=data_shares(samples).to(visit.shares),
    )
    trained = work._replace(
        model=work.model.map(lambda tree: chosen(tree, fine)),
        losses=work.losses[fine],
        up=chosen(work.up, fine),
        kept=chosen(work.kept, fine),
    )
    return fewer, trained


def aggregated(
    visit: Visit, fed: Federation, server: Tree, old: Model, work: Work
) -> tuple[Tree, Model]:
    """The server's new state and model: x + step(sum_i w_i (y_i - x)); buffers by data share."""
    weights = visit.shares
    for piece in visit.pieces:
        weights = piece.weights(weights, work.up[piece.name])
    delta = trees.tree_map(
        lambda y, x: trees.weighted_sum(weights, y - x), work.model.params, old.params
    )
    fraction = len(visit.cohort) / len(fed.samples)
    for piece in visit.pieces:
        state, delta = piece.step(server[piece.name], delta, work.up[piece.name], fraction)
        server = server | {piece.name: state}
    params = trees.tree_map(torch.add, old.params, delta)
    return server, Model(params, trees.average(work.model.buffers, visit.shares))


def remembered(state: State, visit: Visit, work: Work) -> dict[int, Tree]:
    """What every client keeps after the round; local models only until they are shared."""
    kept = {name: tree for name, tree in work.kept.items() if tree}
    if not visit.sharing:
        kept["model"] = work.model._asdict()
    clients = dict(state.clients)
    if kept:
        clients |= zip(visit.cohort, trees.unstack(kept, len(visit.cohort)), strict=True)
    if visit.sharing:
        clients = {k: {n: t for n, t in own.items() if n != "model"} for k, own in clients.items()}
    return {client: own for client, own in clients.items() if own}


def message(model: Model) -> Tree:
    """A model as it travels."""
    return {"params": model.params, BUFFERS: model.buffers}
