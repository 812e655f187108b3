"""The server: the simulation's rounds with real clients, from the first hello to the last model.

The model after a round travels with the first question of the next one, and is evaluated there;
so evaluation costs no handshake, and a round's record is complete when the next one has begun.
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
from fedfm.deploy.checks import check_deployable
from fedfm.deploy.packets import Packet
from fedfm.deploy.secure import SecureError
from fedfm.deploy.server.enrolment import Gathering
from fedfm.deploy.server.expected import expected
from fedfm.deploy.server.messaging import PAUSE
from fedfm.deploy.server.scale import typical_weight
from fedfm.deploy.server.scores import SCORES, judge, score_of
from fedfm.deploy.server.sums import Collected, Collector, InTheClear, Masked
from fedfm.engine.networks import copy_model
from fedfm.methods.base import Model, Task
from fedfm.privacy.guard import Guard, secret_sources
from fedfm.rounds.exchange import Request, Sums
from fedfm.rounds.federation import draw_cohort
from fedfm.rounds.round import RoundLog, serve_round
from fedfm.rounds.state import State, initial_state
from fedfm.run.bookkeeper import Bookkeeper, Watcher
from fedfm.run.folder import RunFolder, is_finished
from fedfm.run.prepare import build_model
from fedfm.run.records import Best, Progress, Result, Score

logger = logging.getLogger(__name__)


class TooFew(UserError):
    """Fewer clients than a sum needs are left."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"{reason}. The state before this round is kept: mend what the log says of those that "
            "were left out, or bring more clients, and go on with --resume."
        )


class Server:
    """One federation, run to its end."""

    def __init__(
        self, grid: Grid, config: Config, folder: RunFolder, watch: Watcher, pause: float = PAUSE
    ) -> None:
        check_deployable(config)
        self.config, self.folder, self.method = config, folder, config.composed
        self.keeper = Bookkeeper(config, folder, watch, deployed=True)
        self.clients = Gathering(grid, config, folder.path / "members.json", pause)
        ask = self.clients.ask
        self.collector: Collector = (
            Masked(ask, config.deployment) if config.deployment.secure else InTheClear(ask)
        )

    @cached_property
    def guard(self) -> Guard | None:
        """What the clients' privacy means for their sums."""
        return self.config.guard(secret_sources)

    @property
    def population(self) -> int:
        """N, all clients that were ever admitted."""
        return len(self.clients.members.numbers)

    def cohort(self, round: int) -> list[int]:
        """The clients to be asked in a round, of those that are there."""
        share, seed = self.config.training.participation, self.config.seed
        return draw_cohort(self.clients.present, share, self.population, seed, round)

    def run(self) -> Result:
        """Every round that is left.

        Of a run that has ended already, those get the model who are there.
        """
        if is_finished(self.folder.path):
            self.clients.minimum = 0
        self.clients.gather(self.collector)
        self.start = self._start()
        self.judge = judge(self.config, self.clients.agreement)
        progress = self.keeper.begin(self.start)
        if progress.state.round:
            logger.info("going on after round %d", progress.state.round)
        while progress.state.round < self.config.training.rounds:
            progress = self._round(progress)
            self._keep(progress)
        if progress.pending:
            progress = self._scored(progress, self._final_score(progress.state))
            self._keep(progress)
        result = self.keeper.finish(progress)
        self._deliver(result.best.model)
        return result

    def _start(self) -> State:
        agreement = self.clients.agreement
        network = build_model(self.config, agreement)
        features = models.feature_dim(network, agreement.shape)
        self.task = Task(copy_model(network), len(agreement.classes), features)
        self.clients.settle(typical_weight(self.config, self.task.model, self.clients.unit))
        return initial_state(self.task.model, self.method, self.task, OnClients())

    def _round(self, progress: Progress) -> Progress:
        """One more round; scores the model it began with."""
        began = time.perf_counter()
        self.clients.welcome()
        talk = serve_round(progress.state, self)
        ask = next(talk)
        purposes = [ask.kind] if ask.kind == "train" else ["measure", "train"]
        while True:
            sums, score = self._answered(ask, purposes, self._to_be_scored(progress))
            if score:
                progress = self._scored(progress, score)
            try:
                ask = talk.send(sums)
            except StopIteration as end:
                state, log = end.value
                return self._advanced(progress, state, log, time.perf_counter() - began)

    def _answered(
        self, ask: Request, purposes: Sequence[str], scored: bool
    ) -> tuple[Sums, Score | None]:
        """What the cohort answers, and how good it finds the model."""
        like = expected(ask, self.method, self.task, self.guard)
        wanted = like.total | ({"scores": SCORES} if scored else {})
        model = ask.model._asdict()
        questions = {client: self._question(ask, client, scored, model) for client in ask.cohort}
        total, clients, extra = self._collected(ask.kind, questions, wanted, purposes)
        kept = self._kept(ask, like, clients)
        traffic = sum([like.traffic] * len(clients), extra)
        score = score_of(total.pop("scores"), clients) if scored else None
        found = total["reports"] if ask.kind == "measure" else total
        if "weight" in total:
            self.clients.weighed(float(total["weight"]) / len(clients))
        return Sums(found, clients, clients, kept, traffic, like.held), score

    def _collected(
        self, kind: str, questions: dict[int, Packet], like: Tree, purposes: Sequence[str]
    ) -> Collected:
        try:
            found = self.collector.collect(kind, questions, like, purposes)
        except SecureError as reason:
            raise TooFew(str(reason)) from reason
        clients, minimum = len(found.clients), self.config.deployment.minimum
        if clients < minimum:
            raise TooFew(f"'{kind}': {clients} clients answered, deployment.minimum is {minimum}")
        return found

    def _question(self, ask: Request, client: int, scored: bool, model: Tree) -> Packet:
        facts = self._facts(ask.round) | {
            "kept": ask.kept.rounds.get(client) if isinstance(ask.kept, OnClients) else None,
            "sharing": ask.sharing,
            "evaluate": scored,
        }
        sent = {"down": ask.down} if ask.down else {}
        if client in ask.newcomers:
            sent["model"] = model
        return Packet(facts, sent)

    def _facts(self, round: int) -> dict[str, object]:
        every = self.method.share_every
        return {
            "round": round,
            "version": round // every * every,
            "norm": self.clients.norm,
            "unit": self.clients.unit,
        }

    def _kept(self, ask: Request, like: Sums, clients: Sequence[int]) -> OnClients:
        """What clients keep on their machines from now on, as far as the server knows."""
        assert isinstance(ask.kept, OnClients)
        before = ask.kept.without(self.clients.forgetful())
        if ask.kind == "measure":
            return before
        if self.method.share_every > 1 and ask.sharing:
            return before.clear()
        new: dict[int, Tree] = {client: {} for client in clients if [*like.kept]}
        return before.update(new, ask.round + 1)

    def _to_be_scored(self, progress: Progress) -> bool:
        """Whether the model of the last round waits for the clients' judgement."""
        return progress.pending is not None and self.judge is None

    def _final_score(self, state: State) -> Score:
        facts = self._facts(state.round) | {"kept": None, "sharing": False, "evaluate": True}
        model = {"model": state.model._asdict()}
        questions = {client: Packet(facts, model) for client in self.clients.present}
        found = self._collected("evaluate", questions, {"scores": SCORES}, ["evaluate"])
        return score_of(found.total["scores"], found.clients)

    def _deliver(self, model: Model) -> None:
        """Every client gets the model that the run has come to."""
        trees = {"model": model._asdict()}
        self.clients.ask("deliver", {client: Packet({}, trees) for client in self.clients.present})

    def _scored(self, progress: Progress, score: Score) -> Progress:
        """The progress with a record of the round that was waiting for its score.

        The server has one split only: it cannot both choose a round and judge the choice, so with
        it the last model counts.
        """
        best = progress.best
        better = best is None or self.judge is not None or self._better(score, best)
        return progress.add_score(score, better)

    def _better(self, score: Score, best: Best) -> bool:
        """Whether a model takes the best one's place, also where the two cannot be compared.

        What other clients measured cannot: it may be higher since one that is hard to please was
        away. Where rounds have some of the clients by design, it must do.
        """
        alike = self.config.training.participation < 1 or score.judges == best.judges
        return not alike or score.validation > best.val_accuracy

    def _advanced(
        self, progress: Progress, state: State, log: RoundLog, seconds: float
    ) -> Progress:
        progress = progress.add_round(state, log, seconds)
        return self._scored(progress, self.judge(state.model)) if self.judge else progress

    def _keep(self, progress: Progress) -> None:
        self.keeper.save(progress)
        self.keeper.notify(progress)
