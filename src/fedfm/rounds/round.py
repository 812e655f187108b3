"""The round: the only place where clients and server meet.

model down -> statistics "before" up (a handshake of their own, if a piece takes them)
-> the pieces' messages down -> local training -> statistics "after" and models up
-> aggregation weights -> mean change -> the server's step -> State

`serve_round` is the server's side, for any clients; the other functions run it with clients that
are simulated on this machine.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from torch import Tensor

from fedfm.core.ledger import Ledger, Traffic
from fedfm.core.rng import generator
from fedfm.core.trees import Tree, all_finite
from fedfm.engine.cohort import TrainingJob
from fedfm.engine.executors import Executor, train_together
from fedfm.engine.objective import TASK
from fedfm.engine.profile import phase
from fedfm.methods.base import Participation, Task
from fedfm.methods.composition import Method
from fedfm.privacy.privacy_mechanism import PrivacyMechanism
from fedfm.rounds.clients import answer_measure, answer_train, to_message
from fedfm.rounds.federation import Federation
from fedfm.rounds.group import ClientGroup, prepare_group
from fedfm.rounds.messages import Request, Sums
from fedfm.rounds.server import (
    Diverged,
    absorb_reports,
    aggregate,
    describe_divergence,
    start_model,
)
from fedfm.rounds.shared_round import share_round
from fedfm.rounds.stages import LocalTrainings, Trained, send, train_stages
from fedfm.rounds.state import State


@dataclass(frozen=True)
class RoundLog:
    """The cost of a round and the result of its training."""

    cohort: list[int]
    """The clients in the average."""
    loss: Tensor | None
    """The mean local loss, weighted by samples; None without training, and under privacy."""
    terms: dict[str, Tensor]
    """The task's part of the loss and those of the pieces by name; none if privacy keeps them."""
    failed: list[int]
    """Clients that were left out: no answer, or an answer that was not finite."""
    traffic: Traffic
    held: int
    """The floats that a client holds in training: its model and what the pieces prepared."""


class ServerView(Protocol):
    """What the server knows of a federation."""

    @property
    def method(self) -> Method:
        """The method."""
        ...

    @property
    def task(self) -> Task:
        """The shapes of the model and the data."""
        ...

    @property
    def population(self) -> int:
        """N, the number of clients."""
        ...

    @property
    def privacy(self) -> PrivacyMechanism | None:
        """Clips and noises answers, if privacy is on."""
        ...

    @property
    def rounds(self) -> int | None:
        """The number of all rounds; None if no piece needs to know."""
        ...

    @property
    def seed(self) -> int:
        """The seed of the run."""
        ...

    @property
    def everyone(self) -> list[int]:
        """The clients that can be asked at present, ascending."""
        ...

    def cohort(self, round: int) -> list[int]:
        """Return the clients of a round, ascending."""
        ...


ServerRound = Generator[Request, Sums, tuple[State, RoundLog]]


def serve_round(state: State, view: ServerView) -> ServerRound:
    """Run the server's side of a round: yield requests, receive sums, return the new state."""
    if view.method.concludes(state.round, view.rounds):
        return (yield from serve_conclusion(state, view))
    ledger, server, method = Ledger(), state.server, view.method
    pieces, cohort = method.active(state.round), view.cohort(state.round)
    owners = set(state.clients) if method.share_every > 1 else set()
    newcomers = [client for client in cohort if client not in owners]
    first = [client for client in newcomers if client not in state.received]
    sharing = (state.round + 1) % method.share_every == 0
    sent = start_model(pieces, server, state.model)
    request = Request(
        "train", state.round, cohort, sent, newcomers, first, {}, state.clients, sharing
    )
    once, always = sent.split(method.sent_once(view.task))
    ledger.record_download(to_message(always), len(newcomers))
    ledger.record_download(to_message(once), len(first))
    if any(piece.measures == "before" for piece in pieces):
        sums = yield request._replace(kind="measure")
        _check_sum(sums, view)
        ledger.record_handshake(sums.traffic)
        server = absorb_reports(pieces, server, sums.total, len(sums.clients), view.privacy)
        request = request._replace(cohort=sums.present, newcomers=[], kept=sums.kept)
    down = {piece.name: piece.download(server[piece.name]) for piece in pieces}
    ledger.record_download(down, len(request.cohort))
    sums = yield request._replace(down=down)
    ledger.record_handshake(sums.traffic)
    if not sums.clients:
        raise Diverged(describe_divergence(cohort), state.round)
    _check_sum(sums, view)
    total, clients, model = sums.total, len(sums.clients), state.model
    server = absorb_reports(pieces, server, total["reports"], clients, view.privacy)
    if sharing:
        participation = Participation(clients, view.population, total["samples"], total["weight"])
        with phase("aggregation"):
            server, model = aggregate(pieces, server, model, total, participation)
        if not all_finite(model.params):
            raise Diverged("server's step diverged", state.round)
    failed = sorted(set(cohort) - set(sums.clients))
    traffic = Traffic() if method.pools_data else ledger.traffic
    log = RoundLog(sums.clients, *_mean_losses(total), failed, traffic, sums.held)
    received = (state.received - {*cohort}) | {*sums.present}
    return State(state.round + 1, model, server, sums.kept, received), log


def serve_conclusion(state: State, view: ServerView) -> ServerRound:
    """Run the server's side of the last round of a method that edits the model in it."""
    ledger, cohort, round = Ledger(), view.everyone, state.round
    first = [client for client in cohort if client not in state.received]
    once, always = state.model.split(view.method.sent_once(view.task))
    ledger.record_download(to_message(always), len(cohort))
    ledger.record_download(to_message(once), len(first))
    how = cohort, state.model, cohort, first, Tree(), state.clients
    sums = yield Request("measure", round, *how, sharing=False, when="end")
    ledger.record_handshake(sums.traffic)
    if not sums.clients:
        raise Diverged(describe_divergence(cohort), round)
    model = state.model
    for place, piece in enumerate(view.method.pieces):
        if piece.name in sums.total:
            random = generator(view.seed, "conclusion", place)
            model = piece.conclude(view.task, model, sums.total[piece.name], random)
    failed = sorted(set(cohort) - set(sums.clients))
    log = RoundLog(sums.clients, None, {}, failed, ledger.traffic, 0)
    received = (state.received - {*cohort}) | {*sums.present}
    return State(round + 1, model, state.server, sums.kept, received), log


def _mean_losses(total: Tree) -> tuple[Tensor | None, dict[str, Tensor]]:
    """Return the mean loss and its terms, from a round's sums; nothing where they are private."""
    if "loss" not in total:
        return None, {}
    terms = total["terms"] or {TASK: total["loss"]}
    means = {name: sum_ / total["samples"] for name, sum_ in terms.items()}
    return total["loss"] / total["samples"], means


def _check_sum(sums: Sums, view: ServerView) -> None:
    if view.privacy:
        view.privacy.check_sum(len(sums.clients))


def finish_round(server: ServerRound, sums: Sums) -> tuple[State, RoundLog]:
    """Give the server its last answer; return the new state and the log."""
    try:
        server.send(sums)
    except StopIteration as end:
        result: tuple[State, RoundLog] = end.value
        return result
    raise AssertionError("the server sent another request")


class OpenRound(NamedTuple):
    """A round up to its local training."""

    server: ServerRound
    request: Request
    group: ClientGroup
    training: LocalTrainings
    job: TrainingJob
    """The first stage of the training."""


def run_round(state: State, fed: Federation) -> tuple[State, RoundLog]:
    """Run one communication round: a pure function of the state."""
    (outcome,) = run_rounds([state], [fed])
    if isinstance(outcome, Diverged):
        raise outcome
    return outcome


def run_rounds(
    states: Sequence[State], feds: Sequence[Federation]
) -> list[tuple[State, RoundLog] | Diverged]:
    """Run a round of several federations that differ only in their clients, trained together.

    If one diverges, the others continue.
    """
    if feds[0].method.concludes(states[0].round, feds[0].rounds):
        return [conclude_round(state, fed) for state, fed in zip(states, feds, strict=True)]
    rounds = [open_round(state, fed) for state, fed in zip(states, feds, strict=True)]
    trained = train_in_step(rounds, feds[0].executor)
    return [close_round(*one) for one in zip(rounds, feds, trained, strict=True)]


def train_in_step(rounds: Sequence[OpenRound], executor: Executor) -> list[Trained]:
    """Train all cohorts together, stage by stage."""
    jobs = [one.job for one in rounds]
    while True:
        results = train_together(jobs, executor)
        steps = [send(one.training, r) for one, r in zip(rounds, results, strict=True)]
        if done := [step for step in steps if isinstance(step, Trained)]:
            return done
        jobs = [step for step in steps if isinstance(step, TrainingJob)]


def open_round(state: State, fed: Federation) -> OpenRound:
    """Run a round up to local training."""
    server = share_round(serve_round(state, fed), fed)
    request = next(server)
    group = prepare_group(request, fed)
    if request.kind == "measure":
        request = server.send(answer_measure(group, fed, request))
    training = train_stages(group, fed, request)
    with phase("data"):
        job = next(training)
    return OpenRound(server, request, group, training, job)


def conclude_round(state: State, fed: Federation) -> tuple[State, RoundLog] | Diverged:
    """Run a last round without training."""
    server = serve_round(state, fed)
    request = next(server)
    try:
        return finish_round(server, answer_measure(prepare_group(request, fed), fed, request))
    except Diverged as problem:
        return problem


def close_round(
    opened: OpenRound, fed: Federation, trained: Trained
) -> tuple[State, RoundLog] | Diverged:
    """Run a round from the results of local training to its end."""
    try:
        sums = answer_train(opened.group, fed, opened.request, trained)
        return finish_round(opened.server, sums)
    except Diverged as problem:
        return problem
