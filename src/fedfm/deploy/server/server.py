"""The server: the simulation's rounds with real clients, from enrolment to the final model.

The model after a round is sent with the first question of the next round and evaluated then. So
evaluation needs no handshake, and a round's record is complete once the next round has begun.
"""

import logging
import time
from collections.abc import Sequence
from functools import cached_property

from flwr.serverapp import Grid

from fedfm import models
from fedfm.config import Config
from fedfm.core.client_states import OnClients
from fedfm.core.errors import UserError
from fedfm.core.trees import Tree
from fedfm.deploy.agreement import describe_agreement
from fedfm.deploy.checks import check_deployable
from fedfm.deploy.errors import SecureError, SumLost
from fedfm.deploy.events import (
    Finished,
    RoundBegan,
    RoundDropped,
    emit,
)
from fedfm.deploy.packets import Packet
from fedfm.deploy.server.descriptions import describe_round, describe_start, digest_model
from fedfm.deploy.server.enrolment import Enrolment
from fedfm.deploy.server.expected import expect_answer, expect_scores, expect_weight
from fedfm.deploy.server.messaging import PAUSE
from fedfm.deploy.server.questions import QuestionWriter
from fedfm.deploy.server.scores import BestRoundTracker, make_score, make_scorer
from fedfm.deploy.server.secure_sums import make_collector
from fedfm.deploy.server.sums import Collected
from fedfm.deploy.validation import to_one_line
from fedfm.engine.networks import copy_model, describe_task
from fedfm.methods.base import Model
from fedfm.privacy.privacy_mechanism import PrivacyMechanism, secret_sources
from fedfm.rounds.messages import Request, Sums
from fedfm.rounds.round import serve_round
from fedfm.rounds.sampling import draw_cohort
from fedfm.rounds.state import State, initial_state
from fedfm.run.bookkeeper import Bookkeeper, Watcher
from fedfm.run.folder import RunFolder, is_finished
from fedfm.run.prepare import build_model
from fedfm.run.records import Progress, Result, Score

logger = logging.getLogger(__name__)
DROPPED_IN_A_ROW = 3
"""So many rounds without a sum, one after the other, end the run."""


class TooFewClients(UserError):
    """Fewer clients than a sum needs are left, or these spoil every sum."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"{reason}. The state before this round is kept: fix what the log says about clients "
            "that were left out, or start more clients, and continue with --resume."
        )


class Server:
    """One federation, run to its end."""

    def __init__(
        self, grid: Grid, config: Config, folder: RunFolder, watch: Watcher, pause: float = PAUSE
    ) -> None:
        check_deployable(config)
        self.config, self.folder, self.method = config, folder, config.composed
        self.measures, self.best_round = config.measures, BestRoundTracker(config)
        self.keeper = Bookkeeper(config, folder, watch, deployed=True)
        self.clients = Enrolment(grid, config, folder.path / "members.json", pause)
        self.collector = make_collector(self.clients.ask, config)

    @cached_property
    def privacy(self) -> PrivacyMechanism | None:
        """The effect of the clients' privacy on their sums."""
        return self.config.make_privacy(secret_sources)

    @property
    def population(self) -> int:
        """N, the number of all clients that were ever admitted."""
        return len(self.clients.members.numbers)

    @property
    def rounds(self) -> int:
        """The number of all rounds."""
        return self.config.training.rounds

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return self.config.seed

    @property
    def everyone(self) -> list[int]:
        """The clients that are present."""
        return sorted(self.clients.present)

    def cohort(self, round: int) -> list[int]:
        """Return the clients to ask in a round, drawn from those that are present."""
        share, seed = self.config.training.participation, self.config.seed
        return draw_cohort(self.clients.present, share, self.population, seed, round)

    def run(self) -> Result:
        """Run all remaining rounds; of a finished run, deliver the model to present clients."""
        if is_finished(self.folder.path):
            self.clients.minimum = 0
        emit(describe_start(self.config, self.folder.path))
        self.clients.form_federation(self.collector)
        describe_agreement(self.clients.agreement).save(self.folder.path)
        self.start = self._initial_state()
        self.scorer = make_scorer(self.config, self.clients.agreement)
        progress = self.keeper.begin(self.start)
        if progress.state.round:
            logger.info("continuing after round %d", progress.state.round)
        while progress.state.round < self.config.training.rounds:
            progress = self._complete_round(progress)
            self._save(progress)
            self.clients.members.expect(len(self.clients.present))
        if progress.pending:
            progress = self.best_round.add_score(progress, self._final_score(progress.state))
            self._save(progress)
        result = self.keeper.finish(progress)
        emit(Finished(result.best.round, digest_model(result.best.model)))
        self._deliver(result.best.model, progress.state)
        return result

    def _deliver(self, model: Model, state: State) -> None:
        """Send the final model; a restarted server waits for those that did not get it."""
        present = self.clients.present
        delivered = self.clients.ask("deliver", self.questions.deliver(model, state, present))
        self.clients.members.expect(len(present) - len(delivered))

    def _initial_state(self) -> State:
        agreement = self.clients.agreement
        network = build_model(self.config, describe_agreement(agreement))
        features = models.feature_dim(network, agreement.example)
        self.task = describe_task(network, copy_model(network), len(agreement.classes), features)
        self.method.check(self.task)
        self.questions = QuestionWriter(self.method, self.task, self.clients)
        self.scores = expect_scores(self.config, self.task)
        weight = expect_weight(self.config, self.task.model, self.clients.unit)
        self.clients.settle_unit(weight)
        return initial_state(self.task.model, self.method, self.task, OnClients())

    def _complete_round(self, progress: Progress) -> Progress:
        """Run one more round; begin it anew if its sums are lost, at most `DROPPED_IN_A_ROW` times.

        Meanwhile an operator can revoke keys, and clients can come.
        """
        for times in range(1, DROPPED_IN_A_ROW + 1):
            try:
                return self._round(progress)
            except SumLost as lost:
                reason = to_one_line(lost)
                emit(RoundDropped(progress.state.round + 1, times, reason))
        raise TooFewClients(f"{DROPPED_IN_A_ROW} rounds in a row are dropped: {reason}")

    def _round(self, progress: Progress) -> Progress:
        """Run one more round, and score the model that it began with."""
        began = time.perf_counter()
        self.clients.admit_newcomers()
        conversation = serve_round(progress.state, self)
        request = next(conversation)
        emit(RoundBegan(request.round + 1, list(request.cohort)))
        alone = request.kind == "train" or request.when == "end"
        purposes = [request.kind] if alone else ["measure", "train"]
        while True:
            clients_score = progress.pending is not None and self.scorer is None
            scored = progress.state.model if clients_score else None
            sums, score = self._ask_cohort(request, purposes, scored)
            if score:
                progress = self.best_round.add_score(progress, score)
            try:
                request = conversation.send(sums)
            except StopIteration as end:
                state, log = end.value
                progress = progress.add_round(state, log, time.perf_counter() - began)
                seconds = time.perf_counter() - began
                emit(describe_round(self.config, self.privacy, state, log, seconds))
                if self.scorer:
                    progress = self.best_round.add_score(progress, self.scorer(state.model))
                return progress

    def _ask_cohort(
        self, request: Request, purposes: Sequence[str], scored: Model | None
    ) -> tuple[Sums, Score | None]:
        """Return the sums of the cohort's answers and, if there is one, the score of `scored`."""
        like = expect_answer(request, self.method, self.task, self.privacy)
        wanted = like.total | ({"scores": self.scores} if scored else {})
        questions = self.questions.ask_cohort(request, scored)
        collected = self._collect(request.kind, questions, wanted, purposes)
        total, clients, extra, _ = collected
        kept = self._update_kept(request, like, clients)
        traffic = sum([like.traffic] * len(clients), extra)
        score = make_score(collected, self.measures) if scored else None
        total.pop("scores", None)
        sums = total["reports"] if request.kind == "measure" else total
        if "weight" in total:
            self.clients.rescale_unit(float(total["weight"]) / len(clients))
        return Sums(sums, clients, clients, kept, traffic, like.held), score

    def _collect(
        self, kind: str, questions: dict[int, Packet], like: Tree, purposes: Sequence[str]
    ) -> Collected:
        self.clients.expect(like)
        try:
            collected = self.collector.collect(kind, questions, like, purposes)
        except SumLost:
            raise
        except SecureError as reason:
            raise TooFewClients(str(reason)) from reason
        clients, minimum = len(collected.clients), self.config.deployment.minimum
        if clients < minimum:
            counts = f"{clients} clients answered, deployment.minimum is {minimum}"
            raise TooFewClients(f"'{kind}': {counts}")
        return collected

    def _update_kept(self, request: Request, like: Sums, clients: Sequence[int]) -> OnClients:
        """Return what clients keep on their machines from now on, as far as the server knows."""
        assert isinstance(request.kept, OnClients)
        before = request.kept.without(self.clients.drop_lost())
        if request.kind == "measure":
            return before
        if self.method.share_every > 1 and request.sharing:
            return before.clear()
        new: dict[int, Tree] = {client: {} for client in clients if [*like.kept]}
        return before.update(new, request.round + 1)

    def _final_score(self, state: State) -> Score:
        questions = self.questions.ask_scores(state, self.clients.present)
        try:
            collected = self._collect("evaluate", questions, {"scores": self.scores}, ["evaluate"])
        except SumLost as lost:
            raise TooFewClients(str(lost)) from lost
        return make_score(collected, self.measures)

    def _save(self, progress: Progress) -> None:
        self.keeper.save(progress)
        self.keeper.notify(progress)
