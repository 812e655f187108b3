"""Secure sums over Flower: which parts of an answer go into which words, and a client's steps."""

import logging
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from fedfm.core.trees import Tree, flatten, unflatten
from fedfm.deploy.errors import Refusal
from fedfm.deploy.packets import Packet
from fedfm.deploy.secure import (
    PublicKeys,
    SecureError,
    Session,
    Words,
    accepted,
    encode,
    masked,
    opened,
    revealed,
    shared,
)

logger = logging.getLogger(__name__)
TOO_LARGE = "its answer does not fit into a secure sum; raise deployment.range or lower lr"
LARGE = 4096
"""Leaves of model changes with more numbers than this go into 32-bit words, others into 64."""
BULK = ("change", "pieces")
HIDING = ("keys", "shares", "reveal")
"""The questions that `Hiding` answers by itself."""


def divided(tree: Tree) -> tuple[Tree, Tree]:
    """The bulk of an answer, and what is to be summed finely.

    By name: in a sum of masked words only their order tells what they are.
    """
    leaves = dict(sorted(flatten(tree).items()))
    bulk = {name: leaf for name, leaf in leaves.items() if _is_bulk(name, leaf)}
    fine = {name: leaf for name, leaf in leaves.items() if name not in bulk}
    return unflatten(bulk), unflatten(fine)


def reunited(bulk: Tree, fine: Tree) -> Tree:
    """The inverse of `divided`."""
    return unflatten(flatten(bulk) | flatten(fine))


def _is_bulk(name: str, leaf: Tensor) -> bool:
    return name.split("/")[0] in BULK and leaf.numel() > LARGE and leaf.is_floating_point()


def as_tree(words: Words) -> Tree:
    """Words as tensors, piece by piece."""
    signed = {4: np.int32, 8: np.int64}
    return {
        f"{i:06d}": torch.from_numpy(piece.view(signed[piece.itemsize]))
        for i, piece in enumerate(words.pieces())
    }


def as_pieces(tree: Tree) -> list[np.ndarray]:
    """The inverse of `as_tree`, as far as it is one: whoever adds the pieces checks their form."""
    unsigned = {torch.int32: np.uint32, torch.int64: np.uint64}
    return [
        tree[name].numpy().view(unsigned.get(tree[name].dtype, np.uint8)) for name in sorted(tree)
    ]


class Drawer(Protocol):
    """Where a client's session lies between two questions: in memory, never on disk."""

    def take(self) -> bytes | None:
        """The session, if there is one."""
        ...

    def put(self, session: bytes) -> None:
        """Replace it."""
        ...


class Hiding:
    """A client's part in secure sums."""

    def __init__(self, drawer: Drawer) -> None:
        self.drawer = drawer

    def keys(self, question: Packet) -> Packet:
        """Step 1: fresh keys for this round's sums."""
        session, public = opened(question.facts["purposes"])
        self._keep(session)
        return Packet({"public": public.to_bytes().decode()})

    def shares(self, question: Packet) -> Packet:
        """Step 2: letters with shares of its secrets to every other client."""
        facts = question.facts
        public = {int(k): PublicKeys.from_bytes(v.encode()) for k, v in facts["public"].items()}
        session, letters = shared(self._session(), facts["client"], public, facts["threshold"])
        self._keep(session)
        return Packet({"letters": {str(k): letter.decode() for k, letter in letters.items()}})

    def masked(self, purpose: str, question: Packet, tree: Tree) -> Packet:
        """Steps 3 and 4: accept the others' letters, and hide an answer in noise."""
        facts = question.facts
        letters = {int(k): letter.encode() for k, letter in facts["letters"].items()}
        session = accepted(self._session(), letters)
        words = _encoded(tree, len(letters) + 1, facts["range"])
        session, noise = masked(session, purpose, words)
        self._keep(session)
        return Packet({}, {"words": as_tree(noise)})

    def reveal(self, question: Packet) -> Packet:
        """Step 5: the shares that take the masks of a sum away."""
        facts = question.facts
        session, answer = revealed(
            self._session(), facts["purpose"], facts["survivors"], facts["dropped"]
        )
        self._keep(session)
        return Packet({"shares": {str(k): share.hex() for k, share in answer.items()}})

    def _session(self) -> Session:
        found = self.drawer.take()
        if found is None:
            raise Refusal("this client has no keys for this round")
        return Session.from_bytes(found)

    def _keep(self, session: Session) -> None:
        self.drawer.put(session.to_bytes())


def _encoded(tree: Tree, clients: int, range: float) -> Words:
    """An answer as words; which number is too large is said in the client's own log only."""
    try:
        return encode(*divided(tree), clients, range)
    except SecureError as problem:
        logger.warning("%s", problem)
        raise Refusal(TOO_LARGE) from problem


__all__ = [
    "HIDING",
    "Drawer",
    "Hiding",
    "SecureError",
    "as_pieces",
    "as_tree",
    "divided",
    "reunited",
]
