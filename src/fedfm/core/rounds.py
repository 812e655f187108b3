"""The round: the only place where clients and server meet.

model down -> statistics "before" up (a handshake of their own, if a piece takes them)
-> the pieces' messages down -> local training -> statistics "after" and models up
-> aggregation weights -> mean change -> the server's step -> State
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from fedfm.algorithms.base import Model
from fedfm.core import trees
from fedfm.core.clients import (
    Visit,
    finished,
    job,
    piece_states,
    remembered,
    reports,
    starting_models,
)
from fedfm.core.federation import Federation
from fedfm.core.ledger import BUFFERS, Ledger, Traffic
from fedfm.core.server import absorbed, aggregated, data_shares, without_failures
from fedfm.core.state import State
from fedfm.core.trees import Tree
from fedfm.engine.cohort import Outcome
from fedfm.engine.jobs import Job, train_together
from fedfm.engine.profile import phase


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


class Opened(NamedTuple):
    """A round up to its local training."""

    visit: Visit
    server: Tree
    ledger: Ledger
    received: Tree
    """The pieces' messages to the clients [1, ...]."""
    job: Job


def run_round(state: State, fed: Federation) -> tuple[State, RoundLog]:
    """One communication round: a pure function of the state."""
    return run_rounds([state], [fed])[0]


def run_rounds(states: Sequence[State], feds: Sequence[Federation]) -> list[tuple[State, RoundLog]]:
    """A round of several federations that differ in their clients alone, trained together."""
    rounds = [opened(state, fed) for state, fed in zip(states, feds, strict=True)]
    outcomes = train_together([one.job for one in rounds], feds[0].executor)
    return [closed(*one) for one in zip(states, feds, rounds, outcomes, strict=True)]


def opened(state: State, fed: Federation) -> Opened:
    """Everything that comes before local training."""
    visit, server, ledger = begin(state, fed), state.server, Ledger()
    ledger.down(message(state.model), visit.downloads)
    if any(piece.measures == "before" for piece in visit.pieces):
        report = reports(visit, fed, "before", visit.start)
        server = absorbed(visit, server, report)
        ledger.up(report)
        ledger.handshake()
    down = {piece.name: piece.download(server[piece.name]) for piece in visit.pieces}
    ledger.down(down, len(visit.cohort))
    received = trees.share(down)
    with phase("data"):
        training = job(visit, fed, state.round, received)
    return Opened(visit, server, ledger, received, training)


def closed(
    state: State, fed: Federation, opened: Opened, outcome: Outcome
) -> tuple[State, RoundLog]:
    """Everything that comes after it."""
    visit, server, ledger = opened.visit, opened.server, opened.ledger
    work = finished(visit, fed, opened.received, opened.job, outcome)
    report = reports(visit, fed, "after", work.model)
    ledger.up({"reports": report, "pieces": work.up})
    if visit.sharing:
        ledger.up(message(work.model))
    ledger.handshake()
    everyone = visit.cohort
    visit, work = without_failures(visit, work, state.round)
    server = absorbed(visit, server, report)
    if visit.sharing:
        with phase("aggregation"):
            server, model = aggregated(visit, fed, server, state.model, work)
    else:
        model = state.model
    failed = sorted(set(everyone) - set(visit.cohort))
    log = RoundLog(visit.cohort, visit.shares, work.losses, failed, ledger.traffic, work.held)
    return State(state.round + 1, model, server, remembered(state, fed, visit, work)), log


def begin(state: State, fed: Federation) -> Visit:
    """Choose the cohort and collect what its clients kept."""
    cohort, pieces = fed.cohort(state.round), fed.method.active(state.round)
    samples = [fed.samples[client] for client in cohort]
    kept = [trees.to_device(state.clients.of(client), fed.task.device) for client in cohort]
    start, downloads = starting_models(state.model, kept)
    shares = data_shares(samples).to(next(trees.leaves(start.params)))
    clients = {piece.name: piece_states(kept, piece, fed.task) for piece in pieces}
    sharing = (state.round + 1) % fed.method.share_every == 0
    return Visit(cohort, pieces, samples, shares, start, downloads, clients, sharing)


def message(model: Model) -> Tree:
    """A model as it travels."""
    return {"params": model.params, BUFFERS: model.buffers}
