"""The enrolment of clients: the server waits for them, agrees with them, and admits newcomers."""

import json
import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from flwr.serverapp import Grid

from fedfm.config import Config
from fedfm.config.deployment import Deployment
from fedfm.core.errors import plural, require
from fedfm.core.trees import Tree, flatten
from fedfm.data.text import read_words
from fedfm.deploy.agreement import Agreement, list_names
from fedfm.deploy.packets import PROTOCOL_VERSION, Packet
from fedfm.deploy.proxy.limits import MESSAGE_LIMIT
from fedfm.deploy.server.members import Members
from fedfm.deploy.server.messaging import Messenger
from fedfm.deploy.server.secure_sums import Collector
from fedfm.deploy.server.sums import Questions

logger = logging.getLogger(__name__)


class Enrolment:
    """The clients of a federation, by number."""

    def __init__(self, grid: Grid, config: Config, path: Path, pause: float) -> None:
        self.config, self.minimum = config, config.deployment.minimum
        self.members = Members.load(path, config.deployment.classes)
        self.messenger = Messenger(
            grid, config.deployment, self.members.token, pause, path.with_name(MESSAGE_LIMIT)
        )

    @property
    def agreement(self) -> Agreement:
        """What all clients have in common."""
        assert self.members.agreement is not None
        return self.members.agreement

    @property
    def norm(self) -> dict[str, object]:
        """The normalisation of inputs."""
        return {"mean": self.agreement.mean, "std": self.agreement.std}

    @property
    def unit(self) -> float:
        """The unit in which clients count their samples: in a secure sum, the clients' mean."""
        return self.members.unit if self.config.deployment.secure else 1.0

    def settle_unit(self, weight: float) -> None:
        """Once, choose a unit in which a typical client, whose weight is now this, counts 1."""
        if not self.members.settled:
            self.members.settled = True
            self.rescale_unit(weight)

    def rescale_unit(self, weight: float) -> None:
        """Choose a unit in which a client of this weight counts 1: secure sums are then precise."""
        if self.config.deployment.secure and weight > 0:
            self.members.unit *= weight
            self.members.save()

    @property
    def present(self) -> list[int]:
        """The clients that can be asked."""
        return sorted(self.members.nodes)

    def expect(self, like: Tree) -> None:
        """Prepare for answers like this, as numbers or as words of a secure sum."""
        word = 8 if self.config.deployment.secure else 0
        leaves = flatten(like).values()
        self.messenger.expect(sum(leaf.numel() * max(word, leaf.itemsize) for leaf in leaves))

    def ask(self, kind: str, questions: Questions) -> dict[int, Packet]:
        """Return the answers of clients, by number."""
        nodes = self.members.nodes
        present = {
            nodes[client]: question for client, question in questions.items() if client in nodes
        }
        answers = self.messenger.ask(kind, present)
        return {
            client: answers[nodes[client]] for client in questions if nodes.get(client) in answers
        }

    def drop_lost(self) -> set[int]:
        """Return the clients that have lost their state; they introduce themselves again."""
        nodes, lost = self.members.nodes, self.messenger.lost
        clients = {client for client, node in nodes.items() if node in lost}
        self.members.forget_nodes(clients)
        lost.clear()
        return clients

    def form_federation(self, collector: Collector) -> None:
        """Wait for the clients, let them introduce themselves, and agree."""
        new, given = self.members.agreement is None, self.config.deployment
        clients = self._wait()
        self.members.close()
        self._check_minimum(clients)
        if new and given.mean and self.agreement.channels:
            _check_scale(self.agreement, given)
            self.members.agreement = self.agreement.replace(mean=given.mean, std=given.std)
        if new and self.config.data.words:
            words = read_words(Path(self.config.data.words))
            self.members.agreement = self.agreement.replace(vocabulary=words)
        sums = self._sums_to_ask() if new else {}
        if sums:
            self._collect(collector, clients, sums)
        else:
            self._check_answers(self._enrol(clients))
        self.members.save()
        classes = self.agreement.classes
        shown = list_names(classes, 12)
        logger.info("%d clients, %d classes: %s", len(self.present), len(classes), shown)

    def _check_minimum(self, clients: Sequence[int]) -> None:
        joined, wait = len(clients), self.config.deployment.wait
        require(
            joined >= self.minimum,
            f"{joined} of at least {self.minimum} clients have joined (deployment.minimum) after "
            f"{wait:g} s; start them with 'fedfm join', or raise deployment.wait"
            + "".join(f"\nrefused: {reason}" for reason in self.members.refused.values() if reason),
        )

    def _check_answers(self, clients: Sequence[int]) -> None:
        counts = f"{len(clients)} clients answered 'join', deployment.minimum is {self.minimum}"
        require(len(clients) >= self.minimum, f"{counts}; see this log and the clients' logs")

    def admit_newcomers(self) -> None:
        """Admit clients that came, or came back, since the last round."""
        clients = self._introduce_newcomers()
        if clients:
            self._enrol(clients)
            self.members.save()

    def _wait(self) -> list[int]:
        """Return the clients that fit when all wanted ones have come, or the time is over.

        Until then a refused client can be corrected and join again. A restarted server does not
        wait for clients that were gone before it stopped.
        """
        expected, pause = self.members.expected, self.messenger.pause
        wanted = self.config.training.clients if expected is None else expected
        deadline = time.monotonic() + self.config.deployment.wait
        logger.info("waiting for %s", plural(wanted, "client"))
        while len(self.messenger.nodes()) < wanted and time.monotonic() < deadline:
            time.sleep(pause)
        self._introduce_newcomers()
        while len(self.present) < wanted and time.monotonic() < deadline:
            time.sleep(pause)
            self._introduce_newcomers()
        return self.present

    def _introduce_newcomers(self) -> list[int]:
        names, admitted = self.messenger.names(), list[int]()
        strangers = self.members.find_strangers(names)
        if strangers:
            question = Packet({"config": self._config, "messages": PROTOCOL_VERSION})
            answers = self.messenger.ask("hello", dict.fromkeys(strangers, question))
            failed = set(strangers) - set(answers) - self.messenger.silent
            self.members.refused |= dict.fromkeys(failed, "")
            values = {node: answer.facts.get("introduction") for node, answer in answers.items()}
            admitted = self.members.admit(values, names)
        self._send_refusals()
        return admitted

    def _send_refusals(self) -> None:
        reasons, self.members.unsent = self.members.unsent, {}
        if reasons:
            packets = {node: Packet({"reason": reason}) for node, reason in reasons.items()}
            self.messenger.notify("refused", packets)

    @property
    def _config(self) -> str:
        return json.dumps(self.config.as_toml())

    def _collect(self, collector: Collector, clients: Sequence[int], sums: Tree) -> None:
        """Enrol the clients and collect sums over their data."""
        collected = collector.collect("join", self._join_questions(clients, sums), sums, ["join"])
        self.members.forget_nodes(set(clients) - set(collected.clients))
        self._check_answers(collected.clients)
        if "moments" in sums:
            moments = dict(collected.total["moments"])
            self.members.agreement = self.agreement.set_normalisation(moments)
        self.members.unit = float(collected.total["samples"]) / len(collected.clients)

    def _enrol(self, clients: Sequence[int]) -> list[int]:
        """Tell clients their numbers; return those that answer."""
        answered = [*self.ask("join", self._join_questions(clients, {}))]
        self.members.forget_nodes(set(clients) - set(answered))
        return answered

    def _join_questions(self, clients: Sequence[int], sums: Tree) -> Mapping[int, Packet]:
        facts = {"config": self._config, "agreement": self.agreement.dump(), "tell": [*sums]}
        return {client: Packet(facts | {"client": client}) for client in clients}

    def _sums_to_ask(self) -> Tree:
        """Return the form of the sums over clients' data that the server needs.

        These are moments for the normalisation, and the number of samples. The number is the unit
        that keeps a secure sum precise; with privacy it is not needed.
        """
        channels = self.agreement.channels
        if self.config.deployment.mean or not channels:
            needed = self.config.deployment.secure and self.config.privacy is None
            return {"samples": _form(dtype=torch.int64)} if needed else {}
        moments = {"count": _form(), "sum": _form(channels), "square": _form(channels)}
        return {"moments": moments, "samples": _form(dtype=torch.int64)}


def _form(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _check_scale(agreement: Agreement, given: Deployment) -> None:
    """Refuse a std for images from 0 to 1: training would diverge."""
    require(
        agreement.dtype != "uint8" or max(given.std) >= 1,
        f"deployment.std = {list(given.std)}: the clients' images have values from 0 to 255, and "
        "mean and std must be on that scale; multiply both by 255",
    )
