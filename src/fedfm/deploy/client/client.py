"""A client: answers the server's questions with what it has on its own machine.

Its part of a round is the simulation's, with a cohort of one (rounds/clients.py).
"""

import json
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from fedfm.config import Config, load_config, parse
from fedfm.core.trees import Tree, flatten, to_device
from fedfm.data.dataset import Dataset
from fedfm.deploy.agreement import Agreement, introduce
from fedfm.deploy.checks import check_accountable, check_batches, unlike
from fedfm.deploy.client.memory import is_out_of_memory
from fedfm.deploy.client.runtime import Workshop
from fedfm.deploy.client.site import Site, own_data, own_moments
from fedfm.deploy.client.storage import Desk, fitting
from fedfm.deploy.errors import Lost, Refusal
from fedfm.deploy.masking import HIDING, Hiding
from fedfm.deploy.normalisation import compact
from fedfm.deploy.packets import MESSAGES, Packet
from fedfm.deploy.secure import SecureError
from fedfm.deploy.validation import in_a_line
from fedfm.methods.base import Model
from fedfm.rounds.clients import answer_measure, answer_train, make_job, prepare_group
from fedfm.rounds.exchange import Request, Sums

logger = logging.getLogger(__name__)
QUESTIONS = ("hello", "join", "measure", "deliver", "refused", *HIDING)
"""What a client is asked besides to train and to evaluate, for which Flower has names."""
DIVERGED = {
    "measure": "its features are NaN or infinite",
    "train": "its training ended in NaN or infinity",
}


@dataclass(frozen=True)
class Client:
    """One client."""

    site: Site
    hiding: Hiding
    """Its part in secure sums."""

    @property
    def desk(self) -> Desk:
        """Where it keeps its files."""
        return Desk(self.site.out)

    def answer(self, kind: str, question: Packet) -> Packet:
        """What the client says to a question."""
        if kind not in ("train", "evaluate", *QUESTIONS):
            raise Refusal(f"this version knows no question '{kind}'")
        asked = self.hiding if kind in HIDING else self
        answer: Callable[[Packet], Packet] = getattr(asked, kind)
        return answer(question)

    def hello(self, question: Packet) -> Packet:
        """Check the server's config against its own, if it has one, and introduce itself."""
        theirs = question.facts.get("messages")
        if theirs != MESSAGES:
            said = f"the server's messages are of version {theirs}, this client's of {MESSAGES}"
            raise Refusal(f"{said}: install the same FedFM on both")
        config = parse(json.loads(question.facts["config"]))
        self._compare(config)
        check_accountable(config)
        data = own_data(self.site, config)
        check_batches(data, config)
        own = introduce(self.site.name, data, self.site.columns, self.site.has_share)
        return Packet({"introduction": own.values()})

    def _compare(self, config: Config) -> None:
        if self.site.config is None:
            return
        different = unlike(load_config(self.site.config), config, ("client", "server"))
        if different:
            raise Refusal("the server's config is not this client's: " + different)

    def join(self, question: Packet) -> Packet:
        """Take a number in the federation; tell of its data what is asked."""
        facts = question.facts
        config = parse(json.loads(facts["config"]))
        self._compare(config)
        data = own_data(self.site, config)
        self._notice(data, facts["token"])
        kept = {key: facts[key] for key in ("token", "config", "client", "agreement")}
        self.desk.enrol(kept | {"data": data.digest})
        if not facts["tell"]:
            return Packet({})
        _keep_back(config, "sums of its inputs")
        own: Tree = {"samples": torch.tensor(len(data.train))}
        if "moments" in facts["tell"]:
            units = Agreement.of(facts["agreement"]).units
            own["moments"] = compact(own_moments(self.site, data), *units)
        return self._sent("join", question, config, own)

    def _notice(self, data: Dataset, token: str) -> None:
        """Tell its people if it comes back with other data; more of them may be wanted."""
        with suppress(Lost):
            before = self.desk.enrolment(token).get("data", data.digest)
            if before != data.digest:
                logger.warning("these data are not those that this client joined with before")

    def measure(self, question: Packet) -> Packet:
        """The statistics of its samples under the global model."""
        ask, shop = self._task(question, "measure")
        sums = answer_measure(prepare_group(ask, shop.federation), shop.federation, ask)
        return self._summed(question, shop, ask, sums, {"reports": sums.total})

    def train(self, question: Packet) -> Packet:
        """Train from the global model, or go on from its own."""
        ask, shop = self._task(question, "train")
        fed = shop.federation
        visit = prepare_group(ask, fed)
        training = make_job(visit, fed, ask)
        sums = answer_train(visit, fed, ask, training, fed.executor.train(training))
        return self._summed(question, shop, ask, sums, sums.total)

    def evaluate(self, question: Packet) -> Packet:
        """Measure the last model."""
        ask, shop = self._task(question, "evaluate")
        _keep_back(shop.config, "accuracies")
        return self._sent("evaluate", question, shop.config, {"scores": shop.scores(ask.model)})

    def refused(self, question: Packet) -> Packet:
        """The server does not take this client; its people have to know why."""
        logger.warning("the server refuses this client: %s", in_a_line(question.facts["reason"]))
        return Packet({})

    def deliver(self, question: Packet) -> Packet:
        """Keep the model that the federation has come to."""
        self.desk.enrolment(question.facts["token"])
        model = question.trees["model"]
        self.desk.keep_result({**model["params"], **model.get("buffers", {})})
        if given_away := self.desk.account.statement(question.facts["token"]):
            logger.warning("what this client has given away: %s", given_away)
        return Packet({})

    def _task(self, question: Packet, kind: Any) -> tuple[Request, Workshop]:
        facts = question.facts
        known = self.desk.enrolment(facts["token"])
        agreement = Agreement.of(known["agreement"] | facts["norm"])
        config = parse(json.loads(known["config"]))
        shop = Workshop(self.site, config, agreement, known["client"])
        model = self._model(question, kind, shop)
        sent = to_device(question.trees.get("down", {}), shop.federation.task.device)
        down = {piece.name: sent.get(piece.name, {}) for piece in shop.pieces(facts["round"])}
        states = self.desk.states(known["client"], facts["kept"])
        return Request(
            kind=kind,
            round=facts["round"],
            cohort=[known["client"]],
            model=model,
            newcomers=[],
            down=down,
            kept=states,
            sharing=facts["sharing"],
            unit=facts["unit"],
        ), shop

    def _model(self, question: Packet, kind: str, shop: Workshop) -> Model:
        """The global model: sent with the question, else kept from an earlier one."""
        version, sent = question.facts["version"], question.trees.get("model")
        if sent is None:
            return self.desk.model(version, shop.start)
        if kind == "measure" or shop.config.composed.share_every > 1:
            self.desk.keep_model(sent, version)
        return fitting(sent, shop.start)

    def _summed(
        self, question: Packet, shop: Workshop, ask: Request, sums: Sums, total: Tree
    ) -> Packet:
        if not sums.clients:
            raise Refusal(DIVERGED[ask.kind])
        self._pay(question, shop, ask, total)
        if question.facts["evaluate"]:
            _keep_back(shop.config, "accuracies")
            total = total | {"scores": shop.scores(ask.model)}
        return self._sent(ask.kind, question, shop.config, total)

    def _pay(self, question: Packet, shop: Workshop, ask: Request, total: Tree) -> None:
        """Count an answer before it leaves."""
        if guard := shop.federation.guard:
            updates, reports = ask.kind == "train", bool(flatten(total["reports"]))
            secure = shop.config.deployment.secure
            self.desk.account.pay(question.facts["token"], updates, reports, guard, secure)

    def _sent(self, purpose: str, question: Packet, config: Config, tree: Tree) -> Packet:
        if config.deployment.secure:
            return self.hiding.masked(purpose, question, tree)
        return Packet({}, {"sum": tree})


def _keep_back(config: Config, what: str) -> None:
    """Refuse to tell what carries no noise, whatever the server asks."""
    if config.privacy:
        raise Refusal(f"with [privacy] a client does not tell {what}")


def explained(problem: Exception) -> str:
    """What the server may know of a problem."""
    if isinstance(problem, Refusal | SecureError):
        return str(problem)
    if is_out_of_memory(problem):
        return "its memory is not enough"
    return "it could not answer; its own log says why"
