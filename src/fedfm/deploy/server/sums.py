"""Sums of clients' answers that the server can read."""

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from fedfm.core import trees
from fedfm.core.errors import require
from fedfm.core.ledger import Traffic
from fedfm.core.trees import Tree, flatten
from fedfm.deploy.events import AnswerLeftOut, emit
from fedfm.deploy.packets import Packet, match_tree
from fedfm.deploy.validation import to_one_line

T = TypeVar("T")
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
            log_exclusion(client, kind, reason)
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


def log_exclusion(client: int, kind: str, reason: object) -> None:
    """Tell that an answer does not count."""
    emit(AnswerLeftOut(to_one_line(reason), client=client, question=kind))
