"""A client: answers the server's questions with the data and files of its own machine.

Its part of a round is the simulation's, with a cohort of one (rounds/clients.py).
"""

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch

from fedfm.config import Config, load_config
from fedfm.core.trees import Tree, flatten, to_device, tree_map
from fedfm.data.dataset import Dataset
from fedfm.deploy.agreement import Agreement, describe_agreement, hide_classes
from fedfm.deploy.checks import check_accountable, check_batches, describe_differences
from fedfm.deploy.client.cache import Cache
from fedfm.deploy.client.runtime import Runtime
from fedfm.deploy.client.site import Site
from fedfm.deploy.client.storage import Storage, to_model
from fedfm.deploy.errors import BadEncryptedShares, Refusal, StateLost
from fedfm.deploy.masking import MASKING, Masker
from fedfm.deploy.normalisation import compact
from fedfm.deploy.packets import PROTOCOL_VERSION, Packet
from fedfm.deploy.updates import TooLarge, limit_update
from fedfm.deploy.validation import to_one_line
from fedfm.methods.base import Model
from fedfm.rounds.clients import answer_measure, answer_train
from fedfm.rounds.group import personal_models, prepare_group
from fedfm.rounds.messages import Request, Sums
from fedfm.rounds.stages import train_locally

logger = logging.getLogger(__name__)
QUESTIONS = {
    "hello": "introduce",
    "join": "join",
    "measure": "measure",
    "train": "train",
    "evaluate": "evaluate",
    "deliver": "keep_result",
    "refused": "log_refusal",
}
"""The kinds of questions that a `Client` answers, and its methods for them."""
DIVERGED = {
    "measure": "its features are NaN or infinite",
    "train": "its training ended in NaN or infinity",
}


@dataclass(frozen=True)
class Client:
    """One client."""

    site: Site
    masker: Masker
    cache: Cache = field(default_factory=Cache)

    @property
    def storage(self) -> Storage:
        """The client's files."""
        return Storage(self.site.out)

    def answer(self, kind: str, question: Packet) -> Packet:
        """Return the answer to a question of this kind."""
        if kind not in QUESTIONS | MASKING:
            raise Refusal(f"this version does not know the question '{kind}'")
        if kind == "shares" and self.masker.minimum is None:
            self.masker.expect(self._enrolled_config(question).deployment.minimum)
        owner = self.masker if kind in MASKING else self
        method: Callable[[Packet], Packet] = getattr(owner, (QUESTIONS | MASKING)[kind])
        try:
            return method(question)
        except BadEncryptedShares as problem:
            logger.warning("%s", problem)
            return Packet({"accused": problem.client, "reason": str(problem)})

    def _enrolled_config(self, question: Packet) -> Config:
        """Return the config with which this client joined the federation."""
        enrolment = self.storage.load_enrolment(question.facts["token"])
        return self.cache.read_config(enrolment["config"])

    def introduce(self, question: Packet) -> Packet:
        """Check the server's version and config, and describe this client's data."""
        version = question.facts.get("messages")
        if version != PROTOCOL_VERSION:
            raise Refusal(
                f"the server's messages are of version {version}, this client's of "
                f"{PROTOCOL_VERSION}: install the same FedFM on both"
            )
        config = self._read_config(question)
        check_accountable(config)
        data = self.cache.load_data(self.site, config)
        check_batches(data, config)
        self.masker.expect(config.deployment.minimum)
        introduction = self.site.introduce(data)
        if config.deployment.secure:
            introduction = hide_classes(introduction, config.deployment.classes)
        return Packet({"introduction": introduction.dump()})

    def _read_config(self, question: Packet) -> Config:
        """Return the server's config; refuse another one than this client expects."""
        config = self.cache.read_config(question.facts["config"])
        expected = config if self.site.config is None else load_config(self.site.config)
        if differences := describe_differences(expected, config, ("client", "server")):
            raise Refusal(
                f"the server's config is not this client's: {differences}; use the same config on "
                "both machines, then join again"
            )
        return config

    def join(self, question: Packet) -> Packet:
        """Save the number in the federation; return the sums over its data that are asked for."""
        facts, config = question.facts, self._read_config(question)
        if facts["tell"] and config.deployment.secure:
            self.masker.accept_encrypted_shares(question)
        data = self.cache.load_data(self.site, config)
        self._warn_of_other_data(data, facts["token"])
        enrolment = {key: facts[key] for key in ("token", "config", "client", "agreement")}
        self.storage.save_enrolment(enrolment | {"data": data.digest})
        if not facts["tell"]:
            return Packet({})
        _refuse_private(config, "sums of its inputs")
        sums: Tree = {"samples": torch.tensor(len(data.train))}
        if "moments" in facts["tell"]:
            units = Agreement.parse(facts["agreement"]).units
            sums["moments"] = compact(self.site.compute_moments(data), *units)
        return self._send("join", question, config, sums)

    def _warn_of_other_data(self, data: Dataset, token: str) -> None:
        """Log a warning if the data have changed since the client joined; this is allowed."""
        with suppress(StateLost):
            before = self.storage.load_enrolment(token).get("data", data.digest)
            if before != data.digest:
                logger.warning("the data have changed since this client joined the federation")

    def measure(self, question: Packet) -> Packet:
        """Return statistics of the samples under the global model."""
        request, runtime = self._task(question, "measure")
        fed = runtime.federation
        with runtime.use_threads():
            sums = answer_measure(prepare_group(request, fed), fed, request)
            return self._send_sums(question, runtime, request, sums, {"reports": sums.total})

    def train(self, question: Packet) -> Packet:
        """Train from the global model, or continue from the client's own."""
        request, runtime = self._task(question, "train")
        fed = runtime.federation
        with runtime.use_threads():
            group = prepare_group(request, fed)
            sums = answer_train(group, fed, request, train_locally(group, fed, request))
            return self._send_sums(question, runtime, request, sums, sums.total)

    def evaluate(self, question: Packet) -> Packet:
        """Evaluate the last model."""
        request, runtime = self._task(question, "evaluate")
        _refuse_private(runtime.config, "accuracies")
        with runtime.use_threads():
            scores = {"scores": runtime.evaluate(_own_model(request, runtime))}
            return self._send("evaluate", question, runtime.config, scores)

    def log_refusal(self, question: Packet) -> Packet:
        """Log why the server refuses this client."""
        logger.warning("the server refuses this client: %s", to_one_line(question.facts["reason"]))
        return Packet({})

    def keep_result(self, question: Packet) -> Packet:
        """Save the federation's final model, with what this client has of its own."""
        request, runtime = self._task(question, "deliver")
        model = _own_model(request, runtime)
        description = describe_agreement(runtime.agreement, runtime.data.columns)
        self.storage.save_result({**model.params, **model.buffers}, runtime.config, description)
        if spent := self.storage.describe_privacy(question.facts["token"]):
            logger.warning("privacy that this client has spent: %s", spent)
        return Packet({})

    def _task(self, question: Packet, kind: Any) -> tuple[Request, Runtime]:
        facts = question.facts
        enrolment = self.storage.load_enrolment(facts["token"])
        agreement = Agreement.parse(enrolment["agreement"] | facts["norm"])
        config = self.cache.read_config(enrolment["config"])
        if config.deployment.secure and kind != "deliver":
            self.masker.accept_encrypted_shares(question)  # before the work, which would be in vain
        runtime = self.cache.get_runtime(self.site, config, agreement, enrolment["client"])
        model = self._model(question, kind, runtime)
        sent = to_device(question.trees.get("down", {}), runtime.task.device)
        method, round = config.composed, facts["round"]
        pieces = method.active(round)
        return Request(
            kind=kind,
            round=facts["round"],
            cohort=[enrolment["client"]],
            model=model,
            newcomers=[],
            first=[],
            down={piece.name: sent.get(piece.name, {}) for piece in pieces},
            kept=self.storage.load_states(enrolment["client"], facts["kept"]),
            sharing=facts["sharing"],
            unit=facts["unit"],
            when="end" if method.concludes(round, config.training.rounds) else "before",
        ), runtime

    def _model(self, question: Packet, kind: str, runtime: Runtime) -> Model:
        """Return the global model of this question or, without one, of an earlier question."""
        version, sent = question.facts["version"], question.trees.get("model")
        if sent is None:
            return self.storage.load_model(version, runtime.start)
        method = runtime.config.composed
        model = self.storage.complete_model(sent, method.sent_once(runtime.task))
        if kind == "measure" or (kind == "train" and method.share_every > 1):
            self.storage.save_model(model, version)
        return to_model(model, runtime.start)

    def _send_sums(
        self, question: Packet, runtime: Runtime, request: Request, sums: Sums, total: Tree
    ) -> Packet:
        if not sums.clients:
            raise Refusal(DIVERGED[request.kind])
        self._record_privacy(question, runtime, request, total)
        if question.facts["evaluate"]:
            _refuse_private(runtime.config, "accuracies")
            scored = request._replace(model=_scored_model(question, request, runtime))
            total = total | {"scores": runtime.evaluate(_own_model(scored, runtime))}
        return self._send(request.kind, question, runtime.config, total)

    def _record_privacy(
        self, question: Packet, runtime: Runtime, request: Request, total: Tree
    ) -> None:
        """Count an answer before it is sent."""
        if privacy := runtime.federation.privacy:
            updates, reports = request.kind == "train", bool(flatten(total["reports"]))
            secure = runtime.config.deployment.secure
            self.storage.record_privacy(question.facts["token"], updates, reports, privacy, secure)

    def _send(self, purpose: str, question: Packet, config: Config, tree: Tree) -> Packet:
        if config.deployment.secure:
            tree = _limit_own_update(tree, config)
            return self.masker.mask(purpose, question, tree)
        return Packet({}, {"sum": tree})


def _scored_model(question: Packet, request: Request, runtime: Runtime) -> Model:
    """Return the server's model, which need not be the one that clients start from."""
    params = question.trees.get("scored")
    if params is None:
        return request.model
    return to_model({**request.model._asdict(), "params": params}, runtime.start)


def _own_model(request: Request, runtime: Runtime) -> Model:
    """Return the model that this client would use: the global one, or its own."""
    if not runtime.config.composed.keeps_models:
        return request.model
    kept = to_device(request.kept.get(runtime.client), runtime.task.device)
    personal = personal_models(request.model, [kept])
    return personal.map(lambda tree: tree_map(lambda leaf: leaf[0], tree))


def _limit_own_update(tree: Tree, config: Config) -> Tree:
    """Bound this client's update, which the server cannot do under secure sums."""
    try:
        tree, what = limit_update(tree, config.deployment)
    except TooLarge as problem:
        logger.warning("%s", problem)
        raise Refusal("its update is larger than deployment.max_norm") from problem
    if what:
        logger.warning("%s", what)
    return tree


def _refuse_private(config: Config, what: str) -> None:
    """With [privacy], refuse to send numbers that carry no noise, whatever the server asks."""
    if config.privacy:
        raise Refusal(f"with [privacy] a client does not send {what}")
