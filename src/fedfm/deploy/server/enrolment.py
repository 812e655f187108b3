"""How clients come together: the server waits, agrees with them, and welcomes latecomers."""

import json
import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from flwr.serverapp import Grid

from fedfm.config import Config
from fedfm.config.deployment import Deployment
from fedfm.core.errors import require
from fedfm.core.trees import Tree
from fedfm.deploy.agreement import Agreement
from fedfm.deploy.packets import MESSAGES, Packet
from fedfm.deploy.server.members import Members
from fedfm.deploy.server.messaging import Post
from fedfm.deploy.server.sums import Collector, Questions

logger = logging.getLogger(__name__)


class Gathering:
    """The clients of a federation, by number."""

    def __init__(self, grid: Grid, config: Config, path: Path, pause: float) -> None:
        self.config, self.minimum = config, config.deployment.minimum
        self.members = Members.load(path, config.deployment.classes)
        self.post = Post(grid, config.deployment, self.members.token, pause)

    @property
    def agreement(self) -> Agreement:
        """What all clients have in common."""
        assert self.members.agreement is not None
        return self.members.agreement

    @property
    def norm(self) -> dict[str, object]:
        """How inputs are normalised."""
        return {"mean": self.agreement.mean, "std": self.agreement.std}

    @property
    def unit(self) -> float:
        """In what unit clients count their samples: in a secure sum, the mean over clients."""
        return self.members.unit if self.config.deployment.secure else 1.0

    def settle(self, weight: float) -> None:
        """Begin with a unit in which a typical client, which has this weight now, counts 1."""
        if not self.members.settled:
            self.members.settled = True
            self.weighed(weight)

    def weighed(self, weight: float) -> None:
        """Choose the unit in which clients count on average 1, so that a secure sum is precise."""
        if self.config.deployment.secure and weight > 0:
            self.members.unit *= weight
            self.members.save()

    @property
    def present(self) -> list[int]:
        """The clients that can be asked."""
        return sorted(self.members.nodes)

    def ask(self, kind: str, questions: Questions) -> dict[int, Packet]:
        """The answers of clients, by number."""
        nodes = self.members.nodes
        there = {
            nodes[client]: question for client, question in questions.items() if client in nodes
        }
        answers = self.post.ask(kind, there)
        return {
            client: answers[nodes[client]] for client in questions if nodes.get(client) in answers
        }

    def forgetful(self) -> set[int]:
        """Clients that said that they have lost what they kept; they introduce themselves anew."""
        lost = {client for client, node in self.members.nodes.items() if node in self.post.lost}
        for client in lost:
            self.members.lose(client)
        self.post.lost.clear()
        return lost

    def gather(self, collector: Collector) -> None:
        """Wait for the clients, let them introduce themselves, and agree."""
        new, given = self.members.agreement is None, self.config.deployment
        clients = self._arrived()
        self.members.close()
        self._check_minimum(clients)
        if new and given.mean:
            _check_unit(self.agreement, given)
            self.members.agreement = self.agreement.having(mean=given.mean, std=given.std)
        told = self._told if new else {}
        if told:
            self._learn(collector, clients, told)
        else:
            self._check_answers(self._enrol(clients))
        self.members.save()
        classes = self.agreement.classes
        logger.info("%d clients, %d classes: %s", len(self.present), len(classes), _some(classes))

    def _check_minimum(self, clients: Sequence[int]) -> None:
        found, wait = len(clients), self.config.deployment.wait
        require(
            found >= self.minimum,
            f"{found} of at least {self.minimum} clients have joined (deployment.minimum) after "
            f"{wait:g} s; start them with 'fedfm join', or raise deployment.wait"
            + "".join(f"\nrefused: {reason}" for reason in self.members.refused.values() if reason),
        )

    def _check_answers(self, clients: Sequence[int]) -> None:
        said = f"{len(clients)} clients answered 'join', deployment.minimum is {self.minimum}"
        require(len(clients) >= self.minimum, f"{said}; their logs, and this one, say why")

    def welcome(self) -> None:
        """Admit clients that came, or came back, since the last round."""
        clients = self._introduced()
        if clients:
            self._enrol(clients)
            self.members.save()

    def _arrived(self) -> list[int]:
        """The clients that are there and fit, when they are as many as wanted or it takes too long.

        Who is refused has until then to mend it and come again.
        """
        wanted = self.config.training.clients
        deadline = time.monotonic() + self.config.deployment.wait
        logger.info("waiting for %d clients", wanted)
        while len(self.post.nodes()) < wanted and time.monotonic() < deadline:
            time.sleep(self.post.pause)
        self._introduced()
        while len(self.present) < wanted and time.monotonic() < deadline:
            time.sleep(self.post.pause)
            self._introduced()
        return self.present

    def _introduced(self) -> list[int]:
        names, admitted = self.post.names(), list[int]()
        strangers = self.members.strangers(names)
        if strangers:
            question = Packet({"config": self._config, "messages": MESSAGES})
            answers = self.post.ask("hello", dict.fromkeys(strangers, question))
            failed = set(strangers) - set(answers) - self.post.silent
            self.members.refused |= dict.fromkeys(failed, "")
            told = {node: answer.facts.get("introduction") for node, answer in answers.items()}
            admitted = self.members.admit(told, names)
        self._tell_refused()
        return admitted

    def _tell_refused(self) -> None:
        """Say no to those who have not heard it."""
        said, self.members.untold = self.members.untold, {}
        if said:
            self.post.tell("refused", {n: Packet({"reason": why}) for n, why in said.items()})

    @property
    def _config(self) -> str:
        return json.dumps(self.config.as_toml())

    def _learn(self, collector: Collector, clients: Sequence[int], told: Tree) -> None:
        """Number the clients, and sum what they tell of their data."""
        found = collector.collect("join", self._joining(clients, told), told, ["join"])
        self._joined(clients, found.clients)
        self._check_answers(found.clients)
        if "moments" in told:
            self.members.agreement = self.agreement.normalised(dict(found.total["moments"]))
        self.members.unit = float(found.total["samples"]) / len(found.clients)

    def _enrol(self, clients: Sequence[int]) -> list[int]:
        """Tell clients their numbers; those that know them now."""
        return self._joined(clients, [*self.ask("join", self._joining(clients, {}))])

    def _joined(self, asked: Sequence[int], answered: list[int]) -> list[int]:
        """Those who did not answer introduce themselves anew before the next round."""
        for client in set(asked) - set(answered):
            self.members.lose(client)
        return answered

    def _joining(self, clients: Sequence[int], told: Tree) -> Mapping[int, Packet]:
        facts = {"config": self._config, "agreement": self.agreement.values(), "tell": [*told]}
        return {client: Packet(facts | {"client": client}) for client in clients}

    @property
    def _told(self) -> Tree:
        """What clients tell of their data: of inputs how to normalise them, and how many there are.

        The number is the unit that keeps a secure sum precise; privacy has no use for it.
        """
        if self.config.deployment.mean:
            hidden = self.config.deployment.secure and self.config.privacy is None
            return {"samples": _number(dtype=torch.int64)} if hidden else {}
        channels = self.agreement.shape[0]
        sums = {"count": _number(), "sum": _number(channels), "square": _number(channels)}
        return {"moments": sums, "samples": _number(dtype=torch.int64)}


def _number(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _check_unit(agreement: Agreement, given: Deployment) -> None:
    """Refuse what was meant for images from 0 to 1: training would end in infinity."""
    require(
        agreement.dtype != "uint8" or max(given.std) >= 1,
        f"deployment.std = {list(given.std)}: the clients' images have values from 0 to 255, and "
        "mean and std are of those; multiply both by 255",
    )


def _some(names: Sequence[str], shown: int = 12) -> str:
    rest = len(names) - shown
    return ", ".join(names[:shown]) + (f" and {rest} more" if rest > 0 else "")
