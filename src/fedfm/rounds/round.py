"""The round: the only place where clients and server meet.

model down -> statistics "before" up (a handshake of their own, if a piece takes them)
-> the pieces' messages down -> local training -> statistics "after" and models up
-> aggregation weights -> mean change -> the server's step -> State

`serve_round` is the server's part of it, whoever the clients are; the rest runs it with clients
simulated on this machine.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from torch import Tensor

from fedfm.core.ledger import Ledger, Traffic
from fedfm.core.trees import all_finite
from fedfm.engine.cohort import TrainingResult
from fedfm.engine.jobs import TrainingJob, train_together
from fedfm.engine.profile import phase
from fedfm.methods.base import Turnout
from fedfm.methods.composition import Method
from fedfm.privacy.guard import Guard
from fedfm.rounds.clients import (
    Participants,
    answer_measure,
    answer_train,
    make_job,
    prepare_participants,
    to_message,
)
from fedfm.rounds.exchange import Request, Sums
from fedfm.rounds.federation import Federation
from fedfm.rounds.server import Diverged, absorb_reports, aggregate, describe_divergence
from fedfm.rounds.state import State


@dataclass(frozen=True)
class RoundLog:
    """What a round cost and how the training went."""

    cohort: list[int]
    """The clients that took part and are in the average."""
    loss: Tensor | None
    """The mean local loss, by data share; None where privacy keeps it at the clients."""
    failed: list[int]
    """Clients that were left out: no answer, or one that was not finite."""
    traffic: Traffic
    held: int
    """Floats a client holds while it trains: its model and what the pieces prepared."""


class Rules(Protocol):
    """What the server knows of a federation."""

    @property
    def method(self) -> Method:
        """What is run."""
        ...

    @property
    def population(self) -> int:
        """N, the number of clients."""
        ...

    @property
    def guard(self) -> Guard | None:
        """Privacy, where answers are clipped and noised."""
        ...

    def cohort(self, round: int) -> list[int]:
        """The clients to be asked in a round, ascending."""
        ...


ServerRound = Generator[Request, Sums, tuple[State, RoundLog]]


def serve_round(state: State, rules: Rules) -> ServerRound:
    """A round as the server sees it: what it asks, and what it makes of the sums it receives."""
    ledger, server, method = Ledger(), state.server, rules.method
    pieces, cohort = method.active(state.round), rules.cohort(state.round)
    owners = set(state.clients) if method.share_every > 1 else set()
    newcomers = [client for client in cohort if client not in owners]
    sharing = (state.round + 1) % method.share_every == 0
    ask = Request("train", state.round, cohort, state.model, newcomers, {}, state.clients, sharing)
    ledger.record_download(to_message(state.model), len(newcomers))
    if any(piece.measures == "before" for piece in pieces):
        sums = yield ask._replace(kind="measure")
        _check_sum(sums, rules)
        ledger.record_handshake(sums.traffic)
        server = absorb_reports(pieces, server, sums.total, len(sums.clients), rules.guard)
        ask = ask._replace(cohort=sums.present, newcomers=[], kept=sums.kept)
    down = {piece.name: piece.download(server[piece.name]) for piece in pieces}
    ledger.record_download(down, len(ask.cohort))
    sums = yield ask._replace(down=down)
    ledger.record_handshake(sums.traffic)
    if not sums.clients:
        raise Diverged(describe_divergence(cohort), state.round)
    _check_sum(sums, rules)
    total, clients, model = sums.total, len(sums.clients), state.model
    server = absorb_reports(pieces, server, total["reports"], clients, rules.guard)
    if sharing:
        turnout = Turnout(clients, rules.population, total["samples"], total["weight"])
        with phase("aggregation"):
            server, model = aggregate(pieces, server, model, total, turnout)
        if not all_finite(model.params):
            raise Diverged("server's step diverged", state.round)
    failed = sorted(set(cohort) - set(sums.clients))
    loss = total["loss"] / total["samples"] if "loss" in total else None
    log = RoundLog(sums.clients, loss, failed, ledger.traffic, sums.held)
    return State(state.round + 1, model, server, sums.kept), log


def _check_sum(sums: Sums, rules: Rules) -> None:
    if rules.guard:
        rules.guard.check_sum(len(sums.clients))


def finish_round(talk: ServerRound, sums: Sums) -> tuple[State, RoundLog]:
    """What the server makes of its last answer."""
    try:
        talk.send(sums)
    except StopIteration as end:
        result: tuple[State, RoundLog] = end.value
        return result
    raise AssertionError("the server asked once more")


class OpenRound(NamedTuple):
    """A round up to its local training."""

    talk: ServerRound
    ask: Request
    visit: Participants
    job: TrainingJob


def run_round(state: State, fed: Federation) -> tuple[State, RoundLog]:
    """One communication round: a pure function of the state."""
    (outcome,) = run_rounds([state], [fed])
    if isinstance(outcome, Diverged):
        raise outcome
    return outcome


def run_rounds(
    states: Sequence[State], feds: Sequence[Federation]
) -> list[tuple[State, RoundLog] | Diverged]:
    """A round of several federations that differ in their clients alone, trained together.

    One that diverges does not keep the others from going on.
    """
    rounds = [open_round(state, fed) for state, fed in zip(states, feds, strict=True)]
    outcomes = train_together([one.job for one in rounds], feds[0].executor)
    return [close_round(*one) for one in zip(rounds, feds, outcomes, strict=True)]


def open_round(state: State, fed: Federation) -> OpenRound:
    """Everything that comes before local training."""
    talk = serve_round(state, fed)
    ask = next(talk)
    visit = prepare_participants(ask, fed)
    if ask.kind == "measure":
        ask = talk.send(answer_measure(visit, fed, ask))
    with phase("data"):
        training = make_job(visit, fed, ask)
    return OpenRound(talk, ask, visit, training)


def close_round(
    opened: OpenRound, fed: Federation, outcome: TrainingResult
) -> tuple[State, RoundLog] | Diverged:
    """Everything that comes after it."""
    talk, ask, visit, job = opened
    try:
        return finish_round(talk, answer_train(visit, fed, ask, job, outcome))
    except Diverged as problem:
        return problem
