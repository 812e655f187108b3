"""Sums over clients: of plain answers, or of masked ones that the server cannot read."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from fedfm.config.deployment import Deployment
from fedfm.core import trees
from fedfm.core.errors import UserError, require
from fedfm.core.ledger import Traffic
from fedfm.core.trees import Tree, flatten
from fedfm.deploy import secure
from fedfm.deploy.errors import SecureError, SumLost, insist
from fedfm.deploy.events import LeftOut, SumRepeated, tell
from fedfm.deploy.masking import merge_answer, split_answer, tree_to_pieces
from fedfm.deploy.packets import Packet, match_tree
from fedfm.deploy.secure import PublicKeys, Words
from fedfm.deploy.validation import to_one_line

T = TypeVar("T")
LOST_IN_A_ROW = 3
"""So many lost sums, one after the other, end the run."""
_MALFORMED = (ValueError, LookupError, TypeError, AttributeError)
"""What reading an answer of another form raises; `UserError` is a ValueError."""
Questions = Mapping[int, Packet]
Ask = Callable[[str, Questions], dict[int, Packet]]
"""Asks clients, by number, a kind of question."""


class Collected(NamedTuple):
    """A sum, the clients in it, and the traffic beyond the question and the answers."""

    total: Tree
    clients: list[int]
    extra: Traffic = Traffic()
    answers: Mapping[int, Tree] = MappingProxyType({})
    """Each client's answer, where the server can read it."""


class PlainSums:
    """Collects sums of answers that the server reads and checks.

    `check` gets a client's number, the question and the answer; it returns the answer that counts,
    or refuses it.
    """

    def __init__(self, ask: Ask, check: Callable[[int, Packet, Tree], Tree]) -> None:
        self.ask, self.check = ask, check

    def collect(
        self, kind: str, questions: Questions, like: Tree, purposes: Sequence[str]
    ) -> Collected:
        """Return the sum of all answers that look like `like`, are finite and can be true."""
        answers = self.ask(kind, questions)

        def read(client: int, answer: Packet) -> Tree:
            return self.check(client, questions[client], read_sum(answer, like))

        valid = read_valid(kind, answers, read)
        return Collected(add_answers([*valid.values()]), [*valid], answers=valid)


def read_valid(
    kind: str, answers: Mapping[int, Packet], read: Callable[[int, Packet], T]
) -> dict[int, T]:
    """Return what `read` makes of the answers by client, sorted; leave out those it refuses."""
    valid = {}
    for client, answer in sorted(answers.items()):
        try:
            valid[client] = read(client, answer)
        except _MALFORMED as reason:
            _log_exclusion(client, kind, reason)
    return valid


def read_sum(answer: Packet, like: Tree) -> Tree:
    """Return the tree of an answer; refuse another form and numbers that are not finite."""
    require("sum" in answer.trees, "the answer holds no sum")
    tree = match_tree(answer.trees["sum"], like)
    for name, leaf in flatten(tree).items():
        require(_is_finite(leaf), f"'{name}' is not finite")
    return tree


def _is_finite(leaf: Tensor) -> bool:
    """Return whether every number is finite; looking at the extremes allocates no memory."""
    if not leaf.is_floating_point() or not leaf.numel():
        return True
    return all(math.isfinite(extreme) for extreme in torch.aminmax(leaf))


def add_answers(answers: Sequence[Tree]) -> Tree:
    """Return the sum of the clients' answers; of counters, the largest."""
    if not answers:
        return {}
    total = trees.tree_map(torch.clone, answers[0])
    for answer in answers[1:]:
        trees.tree_map(Tensor.add_, total, answer)
    if "counters" in total:
        largest = trees.stack([answer["counters"] for answer in answers])
        total["counters"] = trees.tree_map(lambda leaf: leaf.amax(0), largest)
    return total


class SecureSums:
    """Collects sums of masked answers: the masks hide each answer and cancel in the sum.

    A sum that is lost by a fault is repeated, without the clients at fault if these are known.
    `check` refuses a sum over some number of clients that cannot be true.
    """

    def __init__(
        self,
        ask: Ask,
        deployment: Deployment,
        check: Callable[[Tree, int], None] = lambda total, clients: None,
    ) -> None:
        self.ask, self.deployment, self.check = ask, deployment, check
        self.excluded: set[int] = set()
        """Clients that were at fault; they are not asked any more."""
        self.public: dict[int, PublicKeys] = {}
        self.letters: dict[int, dict[str, str]] = {}
        """The letters to every client that takes part, by sender."""
        self.threshold, self.ready = 0, False

    def collect(
        self, kind: str, questions: Questions, like: Tree, purposes: Sequence[str]
    ) -> Collected:
        """Return the sum of answers like `like`, as long as `threshold` clients stay.

        `purposes` are this sum and all later sums of the round.
        """
        extra = Traffic()
        for trial in range(1, LOST_IN_A_ROW + 1):
            asked = {k: each for k, each in questions.items() if k not in self.excluded}
            try:
                found = self._collect_once(kind, asked, like, purposes)
                return found._replace(extra=found.extra + extra)
            except SumLost as lost:
                reason, self.ready = to_one_line(lost), False
                purposes = purposes[purposes.index(kind) :]
                extra += Traffic(handshakes=4)
                tell(SumRepeated(kind, trial, reason))
                self._exclude(lost.clients, reason)
        raise SecureError(f"'{kind}': {LOST_IN_A_ROW} sums in a row are lost: {reason}")

    def _exclude(self, clients: Iterable[int], reason: str) -> None:
        for client in sorted(clients):
            self.excluded.add(client)
            tell(LeftOut(reason, client=client, for_good=True))

    def _collect_once(
        self, kind: str, questions: Questions, like: Tree, purposes: Sequence[str]
    ) -> Collected:
        extra = Traffic()
        if not self.ready:
            self._set_up(sorted(questions), purposes)
            extra += Traffic(handshakes=2)
        survivors, total = self._add_masked(kind, questions, like)
        dropped = sorted(self.letters.keys() - set(survivors))
        facts = {"purpose": kind, "survivors": survivors, "dropped": dropped}
        answers = self.ask("reveal", {client: Packet(facts) for client in survivors})
        shares = self._read_shares(answers, survivors, dropped)
        words, liars = secure.unmask(
            total, kind, self.public, survivors, dropped, shares, self.threshold
        )
        self._exclude(liars, "its shares are wrong")
        parts = secure.decode(words, *split_answer(like), len(survivors), self.deployment.range)
        self.ready = kind != purposes[-1]
        result = average_counters(trees.complete(merge_answer(*parts), like), len(survivors))
        self._check_total(result, len(survivors))
        return Collected(result, survivors, extra + Traffic(handshakes=1))

    def _check_total(self, total: Tree, clients: int) -> None:
        try:
            self.check(total, clients)
        except UserError as problem:
            raise SumLost(f"the sum cannot be true, and does not show whose: {problem}") from None

    def _set_up(self, clients: Sequence[int], purposes: Sequence[str]) -> None:
        """Exchange the clients' keys and letters."""
        self.public = self._collect_keys(clients, purposes)
        self.threshold = self._threshold(len(self.public))
        few = f"{len(self.public)} clients sent keys, {self.threshold} are needed"
        insist(len(self.public) >= self.threshold, few)
        texts = {str(client): keys.to_bytes().decode() for client, keys in self.public.items()}
        facts = {"public": texts, "threshold": self.threshold}
        answers = self.ask("shares", {k: Packet(facts | {"client": k}) for k in self.public})
        self.letters = _sort_letters(
            {k: answer.facts.get("letters") for k, answer in answers.items()}
        )
        self.ready = True

    def _collect_keys(
        self, clients: Sequence[int], purposes: Sequence[str]
    ) -> dict[int, PublicKeys]:
        def read(client: int, answer: Packet) -> PublicKeys:
            keys = PublicKeys.from_bytes(str(answer.facts.get("public")).encode())
            keys.check(set(purposes), client)
            return keys

        answers = self.ask("keys", {k: Packet({"purposes": list(purposes)}) for k in clients})
        return read_valid("keys", answers, read)

    def _threshold(self, clients: int) -> int:
        """Return how many clients must reveal shares; never fewer than the minimum of a sum."""
        wanted = self.deployment.threshold or -(-2 * clients // 3)
        return max(2, wanted, self.deployment.minimum)

    def _add_masked(self, kind: str, questions: Questions, like: Tree) -> tuple[list[int], Words]:
        """Ask the clients that take part; return those that answer, and the sum of their words."""
        total = Words.zeros(*secure.sizes(*split_answer(like)))
        asked = {
            client: Packet(
                {**facts, "letters": self.letters[client], "range": self.deployment.range}, sent
            )
            for client, (facts, sent) in questions.items()
            if client in self.letters
        }

        accused: dict[int, int] = {}

        def add(client: int, answer: Packet) -> None:
            if "accused" in answer.facts:
                accused[client] = int(answer.facts["accused"])
                raise UserError(str(answer.facts.get("reason")))
            secure.add(total, tree_to_pieces(answer.trees.get("words", {})), client)

        survivors = [*read_valid(kind, self.ask(kind, asked), add)]
        _judge(accused, len(asked))
        return survivors, total

    def _read_shares(
        self, answers: Mapping[int, Packet], survivors: Sequence[int], dropped: Sequence[int]
    ) -> dict[int, dict[int, bytes]]:
        def read(client: int, answer: Packet) -> dict[int, bytes]:
            given = {int(k): bytes.fromhex(v) for k, v in answer.facts["shares"].items()}
            secure.check_shares(client, given, self.public, survivors, dropped)
            return given

        return read_valid("reveal", answers, read)


Collector = PlainSums | SecureSums


def _judge(accused: Mapping[int, int], clients: int) -> None:
    """Raise `SumLost` if most others cannot read a client's letters: then it is at fault.

    A single complaint does not show who lies; the one that complains misses the sum.
    """
    for client, complaints in Counter(accused.values()).items():
        if complaints > 1 and 2 * complaints >= clients - 1:
            who = ", ".join(str(k) for k in sorted(accused) if accused[k] == client)
            raise SumLost(f"clients {who} cannot read the letters of client {client}", [client])


def _sort_letters(letters: Mapping[int, object]) -> dict[int, dict[str, str]]:
    """Return by receiver the letters, given by sender; leave out incomplete senders."""
    everyone = set(letters)
    complete = {
        sender: written
        for sender, written in letters.items()
        if isinstance(written, dict) and {str(k) for k in everyone - {sender}} <= written.keys()
    }
    for client in sorted(everyone - set(complete)):
        _log_exclusion(client, "shares", "it has not written a letter to every other client")
    return {
        client: {
            str(sender): str(complete[sender][str(client)])
            for sender in complete
            if sender != client
        }
        for client in complete
    }


def average_counters(total: Tree, clients: int) -> Tree:
    """Replace the counters of a masked sum by their mean: a sum does not show the largest."""
    if "counters" not in total:
        return total
    mean = trees.tree_map(lambda leaf: leaf // clients, total["counters"])
    return total | {"counters": mean}


def _log_exclusion(client: int, kind: str, reason: object) -> None:
    tell(LeftOut(to_one_line(reason), client=client, question=kind))
