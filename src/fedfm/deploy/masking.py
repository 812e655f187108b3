"""Secure sums over Flower: how answers become words, and a client's steps of the protocol."""

import logging

import numpy as np
import torch
from flwr.app import ConfigRecord, RecordDict
from torch import Tensor

from fedfm.core.trees import Tree, flatten, unflatten
from fedfm.deploy import secure
from fedfm.deploy.errors import Refusal, SecureError
from fedfm.deploy.packets import Packet
from fedfm.deploy.secure import PublicKeys, Session, Words

logger = logging.getLogger(__name__)
TOO_LARGE = "its answer does not fit into a secure sum; raise deployment.range or lower lr"
LARGE = 4096
"""Leaves of model changes with more numbers than this use 32-bit words, all others 64-bit words."""
BULK = ("change", "pieces")
SESSION, MINIMUM = "fedfm-session", "fedfm-minimum"
MASKING = {"keys": "create_keys", "shares": "share_secrets", "reveal": "reveal_shares"}
"""The kinds of questions that a `Masker` answers, and its methods for them."""


def split_answer(tree: Tree) -> tuple[Tree, Tree]:
    """Split an answer into its bulk and what needs fine words.

    Leaves are sorted by name, because words carry no names: only their order identifies them.
    """
    leaves = dict(sorted(flatten(tree).items()))
    bulk = {name: leaf for name, leaf in leaves.items() if _is_bulk(name, leaf)}
    fine = {name: leaf for name, leaf in leaves.items() if name not in bulk}
    return unflatten(bulk), unflatten(fine)


def merge_answer(bulk: Tree, fine: Tree) -> Tree:
    """Undo `split_answer`."""
    return unflatten(flatten(bulk) | flatten(fine))


def _is_bulk(name: str, leaf: Tensor) -> bool:
    return name.split("/")[0] in BULK and leaf.numel() > LARGE and leaf.is_floating_point()


def words_to_tree(words: Words) -> Tree:
    """Return words as tensors, one for each piece."""
    signed = {4: np.int32, 8: np.int64}
    return {
        f"{i:06d}": torch.from_numpy(piece.view(signed[piece.itemsize]))
        for i, piece in enumerate(words.pieces())
    }


def tree_to_pieces(tree: Tree) -> list[np.ndarray]:
    """Undo `words_to_tree`; the form of the pieces is checked when they are added."""
    unsigned = {torch.int32: np.uint32, torch.int64: np.uint64}
    return [
        tree[name].numpy().view(unsigned.get(tree[name].dtype, np.uint8)) for name in sorted(tree)
    ]


class Masker:
    """A client's part in secure sums.

    `state` is Flower's state of the node: it keeps the session in memory between two questions and
    is never written to disk.
    """

    def __init__(self, state: RecordDict) -> None:
        self.state = state

    def create_keys(self, question: Packet) -> Packet:
        """Step 1: create keys for this round's sums."""
        session, public = secure.open_session(question.facts["purposes"])
        self._keep(session)
        return Packet({"public": public.to_bytes().decode()})

    def expect(self, minimum: int) -> None:
        """Remember the fewest clients of a sum (deployment.minimum of the config)."""
        self.state[MINIMUM] = ConfigRecord({"minimum": minimum})

    @property
    def minimum(self) -> int | None:
        """The fewest clients of a sum, if this client knows it."""
        record = self.state.config_records.get(MINIMUM)
        return None if record is None else int(record["minimum"])  # type: ignore[arg-type]

    def share_secrets(self, question: Packet) -> Packet:
        """Step 2: encrypt shares of this client's secrets for all other clients."""
        if self.minimum is None:
            raise Refusal("this client does not know deployment.minimum yet")
        facts = question.facts
        public = {int(k): PublicKeys.from_bytes(v.encode()) for k, v in facts["public"].items()}
        session, encrypted_shares = secure.share_secrets(
            self._session(), facts["client"], public, facts["threshold"], self.minimum
        )
        self._keep(session)
        return Packet(
            {"letters": {str(k): sealed.decode() for k, sealed in encrypted_shares.items()}}
        )

    def accept_encrypted_shares(self, question: Packet) -> int:
        """Step 3: accept the encrypted shares of the others; return the number of clients."""
        encrypted_shares = {
            int(k): sealed.encode() for k, sealed in question.facts["letters"].items()
        }
        self._keep(secure.accept_encrypted_shares(self._session(), encrypted_shares))
        return len(encrypted_shares) + 1

    def mask(self, purpose: str, question: Packet, tree: Tree) -> Packet:
        """Steps 3 and 4: accept the encrypted shares of the others, and mask an answer."""
        clients = self.accept_encrypted_shares(question)
        words = _encode(tree, clients, question.facts["range"])
        session, hidden = secure.mask(self._session(), purpose, words)
        self._keep(session)
        return Packet({}, {"words": words_to_tree(hidden)})

    def reveal_shares(self, question: Packet) -> Packet:
        """Step 5: reveal the shares that remove the masks of a sum."""
        facts = question.facts
        session, shares = secure.reveal_shares(
            self._session(), facts["purpose"], facts["survivors"], facts["dropped"]
        )
        self._keep(session)
        return Packet({"shares": {str(k): share.hex() for k, share in shares.items()}})

    def _session(self) -> Session:
        record = self.state.config_records.get(SESSION)
        if record is None:
            raise Refusal("this client has no keys for this round")
        return Session.from_bytes(bytes(record["session"]))  # type: ignore[arg-type]  # from `_keep`

    def _keep(self, session: Session) -> None:
        self.state[SESSION] = ConfigRecord({"session": session.to_bytes()})


def _encode(tree: Tree, clients: int, range: float) -> Words:
    """Return an answer as words; only the client's log says which number is too large."""
    try:
        return secure.encode(*split_answer(tree), clients, range)
    except SecureError as problem:
        logger.warning("%s", problem)
        raise Refusal(TOO_LARGE) from problem
