"""The server: the simulation's rounds with real clients, from enrolment to the final model.

The model after a round is sent with the first question of the next round and evaluated then. So
evaluation needs no handshake, and a round's record is complete once the next round has begun.
"""

import hashlib
import logging
import time
from collections.abc import Sequence
from functools import cached_property

from flwr.serverapp import Grid

from fedfm import __version__, models
from fedfm.config import Config
from fedfm.core.checkpoint import to_bytes
from fedfm.core.client_states import ClientStates, OnClients
from fedfm.core.errors import UserError
from fedfm.core.trees import Tree
from fedfm.deploy.agreement import describe_agreement
from fedfm.deploy.checks import check_deployable
from fedfm.deploy.errors import SecureError
from fedfm.deploy.events import Finished, RoundBegan, RoundEnded, Scored, Started, tell
from fedfm.deploy.packets import PROTOCOL_VERSION, Packet
from fedfm.deploy.server.enrolment import Enrolment
from fedfm.deploy.server.expected import expect_answer, expect_scores, expect_weight
from fedfm.deploy.server.messaging import PAUSE
from fedfm.deploy.server.plausible import Plausible
from fedfm.deploy.server.scores import make_score, make_scorer
from fedfm.deploy.server.sums import Collected, Collector, PlainSums, SecureSums
from fedfm.engine.networks import copy_model, describe_task
from fedfm.methods.base import Model
from fedfm.privacy.guard import Guard, secret_sources
from fedfm.rounds.exchange import Request, Sums
from fedfm.rounds.federation import draw_cohort
from fedfm.rounds.round import RoundLog, serve_round
from fedfm.rounds.state import State, initial_state
from fedfm.run.bookkeeper import Bookkeeper, Watcher
from fedfm.run.folder import RunFolder, is_finished
from fedfm.run.prepare import build_model
from fedfm.run.records import Best, Progress, Result, RoundRecord, Score
from fedfm.run.scores import make_selection

logger = logging.getLogger(__name__)


class TooFewClients(UserError):
    """Fewer clients than a sum needs are left."""

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
        self.measures, self.selection = config.measures, make_selection(config)
        self.keeper = Bookkeeper(config, folder, watch, deployed=True)
        self.clients = Enrolment(grid, config, folder.path / "members.json", pause)
        ask, plausible = self.clients.ask, Plausible(config)
        self.collector: Collector = (
            SecureSums(ask, config.deployment, plausible.check_total)
            if config.deployment.secure
            else PlainSums(ask, plausible.check)
        )

    @cached_property
    def guard(self) -> Guard | None:
        """The effect of the clients' privacy on their sums."""
        return self.config.guard(secret_sources)

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
        tell(self._describe_start())
        self.clients.form_federation(self.collector)
        describe_agreement(self.clients.agreement).save(self.folder.path)
        self.start = self._initial_state()
        self.scorer = make_scorer(self.config, self.clients.agreement)
        progress = self.keeper.begin(self.start)
        if progress.state.round:
            logger.info("continuing after round %d", progress.state.round)
        while progress.state.round < self.config.training.rounds:
            progress = self._round(progress)
            self._save(progress)
        if progress.pending:
            progress = self._add_score(progress, self._final_score(progress.state))
            self._save(progress)
        result = self.keeper.finish(progress)
        tell(Finished(result.best.round, digest_model(result.best.model)))
        self._deliver(result.best.model, progress.state)
        return result

    def _initial_state(self) -> State:
        agreement = self.clients.agreement
        network = build_model(self.config, describe_agreement(agreement))
        features = models.feature_dim(network, agreement.example)
        self.task = describe_task(network, copy_model(network), len(agreement.classes), features)
        self.method.check(self.task)
        self.scores = expect_scores(self.config, self.task)
        weight = expect_weight(self.config, self.task.model, self.clients.unit)
        self.clients.settle_unit(weight)
        return initial_state(self.task.model, self.method, self.task, OnClients())

    def _round(self, progress: Progress) -> Progress:
        """Run one more round, and score the model that it began with."""
        began = time.perf_counter()
        self.clients.admit_newcomers()
        conversation = serve_round(progress.state, self)
        request = next(conversation)
        tell(RoundBegan(request.round + 1, list(request.cohort)))
        alone = request.kind == "train" or request.when == "end"
        purposes = [request.kind] if alone else ["measure", "train"]
        while True:
            clients_score = progress.pending is not None and self.scorer is None
            scored = progress.state.model if clients_score else None
            sums, score = self._ask_cohort(request, purposes, scored)
            if score:
                progress = self._add_score(progress, score)
            try:
                request = conversation.send(sums)
            except StopIteration as end:
                state, log = end.value
                progress = progress.add_round(state, log, time.perf_counter() - began)
                tell(self._describe_end(state, log, time.perf_counter() - began))
                if self.scorer:
                    progress = self._add_score(progress, self.scorer(state.model))
                return progress

    def _ask_cohort(
        self, request: Request, purposes: Sequence[str], scored: Model | None
    ) -> tuple[Sums, Score | None]:
        """Return the sums of the cohort's answers and, if there is one, the score of `scored`."""
        like = expect_answer(request, self.method, self.task, self.guard)
        wanted = like.total | ({"scores": self.scores} if scored else {})
        whole, part = self._split_model(request.model)
        models = {
            client: whole if client in request.first else part for client in request.newcomers
        }
        questions = {
            client: self._question(request, client, scored, models.get(client))
            for client in request.cohort
        }
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
        except SecureError as reason:
            raise TooFewClients(str(reason)) from reason
        clients, minimum = len(collected.clients), self.config.deployment.minimum
        if clients < minimum:
            counts = f"{clients} clients answered, deployment.minimum is {minimum}"
            raise TooFewClients(f"'{kind}': {counts}")
        return collected

    def _split_model(self, model: Model) -> tuple[Tree, Tree]:
        """Return the first model that a client receives, and a later one."""
        whole, once = model._asdict(), self.method.sent_once(self.task)
        return whole, model.split(once)[1]._asdict() if once else whole

    def _question(
        self, request: Request, client: int, scored: Model | None, model: Tree | None
    ) -> Packet:
        """Return a question; the model to score is sent only if clients start from another."""
        facts = self._facts(request.round, request.kept, client) | {
            "sharing": request.sharing,
            "evaluate": scored is not None,
        }
        sent = {"down": request.down} if request.down else {}
        if scored is not None and self.method.moves_start:
            sent["scored"] = scored.params
        if model is not None:
            sent["model"] = model
        return Packet(facts, sent)

    def _facts(self, round: int, kept: ClientStates, client: int) -> dict[str, object]:
        every = self.method.share_every
        return {
            "round": round,
            "version": round // every * every,
            "kept": kept.rounds.get(client) if isinstance(kept, OnClients) else None,
            "norm": self.clients.norm,
            "unit": self.clients.unit,
        }

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
        whole, part = self._split_model(state.model)
        questions = {
            client: Packet(
                self._facts(state.round, state.clients, client)
                | {"sharing": False, "evaluate": True},
                {"model": part if client in state.received else whole},
            )
            for client in self.clients.present
        }
        collected = self._collect("evaluate", questions, {"scores": self.scores}, ["evaluate"])
        return make_score(collected, self.measures)

    def _deliver(self, model: Model, state: State) -> None:
        """Send the run's final model to every client, which completes it by its own part."""
        trees = {"model": model._asdict()}
        questions = {
            client: Packet(
                self._facts(state.round, state.clients, client) | {"sharing": False}, trees
            )
            for client in self.clients.present
        }
        self.clients.ask("deliver", questions)

    def _add_score(self, progress: Progress, score: Score) -> Progress:
        """Return the progress with the record of the round that waited for its score.

        With the server's scores the last model counts: the server has only one split and cannot
        both choose a round and measure the choice on it. It also counts where clients have models
        of their own, because they keep only the last.
        """
        best, chosen = progress.best, self.selection
        if not chosen.last and chosen.find(score.validation, score.metrics) is None:
            message = "no client has a value of %s on its validation samples: use another select_by"
            logger.warning(message, chosen.metric)
        last_counts = self.scorer is not None or self.method.keeps_models
        better = best is None or last_counts or self._is_better(score, best)
        progress = progress.add_score(score, better)
        tell(describe_score(progress.records[-1]))
        return progress

    def _is_better(self, score: Score, best: Best) -> bool:
        """Return whether a model replaces the best one.

        It does so too if other clients measured it, because such scores cannot be compared: a score
        may rise only because a low-scoring client was absent. With partial participation clients
        differ by design, and scores are compared.
        """
        comparable = self.config.training.participation < 1 or score.judges == best.judges
        return not comparable or self.selection.prefers(score, best)

    def _describe_start(self) -> Started:
        training, file = self.config.training, self.folder.path / "config.toml"
        return Started(
            config=hashlib.sha256(file.read_bytes()).hexdigest(),
            method=self.method.name,
            rounds=training.rounds,
            clients=training.clients,
            secure=self.config.deployment.secure,
            version=__version__,
            protocol=PROTOCOL_VERSION,
        )

    def _describe_end(self, state: State, log: RoundLog, seconds: float) -> RoundEnded:
        traffic, secure = log.traffic, self.config.deployment.secure
        spent = self.guard.spent(self.method, state.round, secure) if self.guard else []
        return RoundEnded(
            round=state.round,
            model=digest_model(state.model),
            clients=list(log.cohort),
            left_out=list(log.failed),
            seconds=seconds,
            bytes_up=traffic.bytes_up,
            bytes_down=traffic.bytes_down,
            handshakes=traffic.handshakes,
            epsilon=spent[0].value if spent else None,
            epsilon_server=spent[1].value if len(spent) > 1 else None,
            delta=spent[0].delta if spent else None,
        )

    def _save(self, progress: Progress) -> None:
        self.keeper.save(progress)
        self.keeper.notify(progress)


def digest_model(model: Model) -> str:
    """Return the SHA-256 of the file model.safetensors that this model would be written to."""
    return hashlib.sha256(to_bytes({**model.params, **model.buffers})).hexdigest()


def describe_score(record: RoundRecord) -> Scored:
    """Return the event of a round's evaluation: accuracies, losses and further metrics."""
    names = ("round", "seconds", "failed", "handshakes")
    counts = tuple(name for name in record.numbers if name.startswith(("floats", "bytes")))
    kept = {k: v for k, v in record.numbers.items() if k not in names + counts}
    return Scored(record.round, kept)
