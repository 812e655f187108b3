"""How the server gets a sum over clients: from answers in the clear, or from masked ones."""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from fedfm.config.deployment import Deployment
from fedfm.core import trees
from fedfm.core.errors import UserError, require
from fedfm.core.ledger import Traffic
from fedfm.core.trees import Tree, flatten
from fedfm.deploy.masking import as_pieces, divided, reunited
from fedfm.deploy.packets import Packet, fitted
from fedfm.deploy.secure import (
    PublicKeys,
    SecureError,
    Words,
    add,
    check_answer,
    decode,
    sizes,
    unmasked,
)
from fedfm.deploy.secure.errors import insist
from fedfm.deploy.validation import in_a_line

logger = logging.getLogger(__name__)
Questions = Mapping[int, Packet]
Asking = Callable[[str, Questions], dict[int, Packet]]
"""Asks clients, by number, a kind of question."""


class Collected(NamedTuple):
    """A sum, who is in it, and what it took beyond the question and the answers themselves."""

    total: Tree
    clients: list[int]
    extra: Traffic = Traffic()


class Collector(Protocol):
    """Gets sums of the clients' answers."""

    def collect(
        self, kind: str, questions: Questions, like: Tree, purposes: Sequence[str]
    ) -> Collected:
        """The sum of the answers, which must each look `like` that.

        `purposes` are all the sums of this round from this one on.
        """
        ...


def left_out(client: int, kind: str, reason: object) -> None:
    """Say once why a client is not in a sum."""
    logger.warning("client %d is left out of '%s': %s", client, kind, in_a_line(reason))


class InTheClear:
    """Every answer is seen, checked and added."""

    def __init__(self, ask: Asking) -> None:
        self.ask = ask

    def collect(
        self, kind: str, questions: Questions, like: Tree, purposes: Sequence[str]
    ) -> Collected:
        """The sum of all answers that are whole and finite."""
        sound: dict[int, Tree] = {}
        for client, answer in self.ask(kind, questions).items():
            try:
                sound[client] = checked(answer, like)
            except UserError as reason:
                left_out(client, kind, reason)
        clients = sorted(sound)
        return Collected(added([sound[client] for client in clients]), clients)


def checked(answer: Packet, like: Tree) -> Tree:
    """The tree of an answer, if it has the right form and every number is finite."""
    require("sum" in answer.trees, "the answer holds no sum")
    tree = fitted(answer.trees["sum"], like)
    for name, leaf in flatten(tree).items():
        require(_is_finite(leaf), f"'{name}' is not finite")
    return tree


def _is_finite(leaf: Tensor) -> bool:
    """Whether every number is finite: the extremes tell, in one pass that writes nothing."""
    if not leaf.is_floating_point() or not leaf.numel():
        return True
    return all(math.isfinite(extreme) for extreme in torch.aminmax(leaf))


def added(answers: Sequence[Tree]) -> Tree:
    """The sum of the clients' answers; of counters, the largest."""
    if not answers:
        return {}
    total = trees.tree_map(torch.clone, answers[0])
    for answer in answers[1:]:
        trees.tree_map(Tensor.add_, total, answer)
    if "counters" in total:
        largest = trees.stack([answer["counters"] for answer in answers])
        total["counters"] = trees.tree_map(lambda leaf: leaf.amax(0), largest)
    return total


class Masked:
    """No answer is seen: masks hide each of them, and cancel in the sum."""

    def __init__(self, ask: Asking, deployment: Deployment) -> None:
        self.ask, self.deployment = ask, deployment
        self.public: dict[int, PublicKeys] = {}
        self.letters: dict[int, dict[str, str]] = {}
        self.threshold, self.ready = 0, False

    def collect(
        self, kind: str, questions: Questions, like: Tree, purposes: Sequence[str]
    ) -> Collected:
        """The sum, as long as `threshold` clients stay."""
        extra = Traffic()
        if not self.ready:
            self._prepare(sorted(questions), purposes)
            extra += Traffic(handshakes=2)
        survivors, total = self._masked(kind, questions, like)
        dropped = sorted(self.letters.keys() - set(survivors))
        facts = {"purpose": kind, "survivors": survivors, "dropped": dropped}
        found = self.ask("reveal", {client: Packet(facts) for client in survivors})
        answers = self._shares(found, survivors, dropped)
        words = unmasked(total, kind, self.public, survivors, dropped, answers, self.threshold)
        parts = decode(words, *divided(like), len(survivors), self.deployment.range)
        self.ready = kind != purposes[-1]
        result = trees.complete(reunited(*parts), like)
        return Collected(
            mean_counters(result, len(survivors)), survivors, extra + Traffic(handshakes=1)
        )

    def _prepare(self, clients: Sequence[int], purposes: Sequence[str]) -> None:
        """Keys and letters: afterwards `letters` has what goes to every client that takes part."""
        found = self.ask("keys", {k: Packet({"purposes": list(purposes)}) for k in clients})
        self.public = {}
        for client, answer in found.items():
            try:
                keys = PublicKeys.from_bytes(str(answer.facts.get("public")).encode())
                keys.check(set(purposes), client)
                self.public[client] = keys
            except SecureError as reason:
                left_out(client, "keys", reason)
        self.threshold = self._threshold(len(self.public))
        few = f"{len(self.public)} clients sent keys, {self.threshold} are needed"
        insist(len(self.public) >= self.threshold, few)
        texts = {str(client): keys.to_bytes().decode() for client, keys in self.public.items()}
        facts = {"public": texts, "threshold": self.threshold}
        sent = self.ask("shares", {k: Packet(facts | {"client": k}) for k in self.public})
        self.letters = _delivered({k: answer.facts.get("letters") for k, answer in sent.items()})
        self.ready = True

    def _threshold(self, clients: int) -> int:
        """How many must help: a sum of fewer than the minimum is of no use, and never unmasked."""
        wanted = self.deployment.threshold or -(-2 * clients // 3)
        return max(2, wanted, self.deployment.minimum)

    def _masked(self, kind: str, questions: Questions, like: Tree) -> tuple[list[int], Words]:
        """Ask those that take part, and add up what they send."""
        bulk, fine = divided(like)
        total, survivors = Words.zeros(*sizes(bulk, fine)), []
        asked = {
            client: Packet(
                {**facts, "letters": self.letters[client], "range": self.deployment.range}, sent
            )
            for client, (facts, sent) in questions.items()
            if client in self.letters
        }
        for client, answer in self.ask(kind, asked).items():
            try:
                add(total, as_pieces(answer.trees.get("words", {})), client)
                survivors.append(client)
            except (ValueError, AttributeError, TypeError) as reason:
                left_out(client, kind, reason)
        return sorted(survivors), total

    def _shares(
        self, found: Mapping[int, Packet], survivors: Sequence[int], dropped: Sequence[int]
    ) -> dict[int, dict[int, bytes]]:
        answers = {}
        for client, packet in found.items():
            try:
                told = {int(k): bytes.fromhex(v) for k, v in packet.facts["shares"].items()}
                check_answer(client, told, self.public, survivors, dropped)
                answers[client] = told
            except (SecureError, LookupError, ValueError, TypeError, AttributeError) as reason:
                left_out(client, "reveal", reason)
        return answers


def _delivered(letters: Mapping[int, object]) -> dict[int, dict[str, str]]:
    """The letters to every client that sent a whole set of its own."""
    everyone = set(letters)
    whole = {
        sender: written
        for sender, written in letters.items()
        if isinstance(written, dict) and {str(k) for k in everyone - {sender}} <= written.keys()
    }
    for client in sorted(everyone - set(whole)):
        left_out(client, "shares", "it has not written a letter to every other client")
    return {
        client: {
            str(sender): str(whole[sender][str(client)]) for sender in whole if sender != client
        }
        for client in whole
    }


def mean_counters(total: Tree, clients: int) -> Tree:
    """Counters of a masked sum: their mean, since a sum does not show the largest."""
    if "counters" not in total:
        return total
    mean = trees.tree_map(lambda leaf: leaf // clients, total["counters"])
    return total | {"counters": mean}
