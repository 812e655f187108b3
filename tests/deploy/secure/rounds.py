"""A round of secure sums played through in memory: the server's side of all the tests here."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

import numpy as np
import torch

from fedfm.core.trees import Tree
from fedfm.deploy import secure
from fedfm.deploy.secure import PublicKeys, Session, Words
from fedfm.deploy.secure.server import Shares

PURPOSES = ("measure", "train")
RANGE = 16.0
Opening = Callable[[Iterable[str]], tuple[Session, PublicKeys]]


@dataclass
class Round:
    """Clients after the set-up, and what the server has seen of them."""

    keys: dict[int, PublicKeys]
    threshold: int
    sessions: dict[int, Session]
    seen: dict[str, dict[int, Words]] = field(default_factory=dict)

    def contribute(self, purpose: str, inputs: dict[int, Words]) -> None:
        self.seen.setdefault(purpose, {})
        for client, words in inputs.items():
            told = secure.mask(self.sessions[client], purpose, words)
            self.sessions[client], self.seen[purpose][client] = told

    def dropped(self, survivors: Collection[int]) -> list[int]:
        return [client for client in self.sessions if client not in survivors]

    def reveal(self, purpose: str, survivors: Collection[int], answering: Iterable[int]):
        answers = {}
        for client in answering:
            session, dropped = self.sessions[client], self.dropped(survivors)
            told = secure.reveal_shares(session, purpose, survivors, dropped)
            self.sessions[client], answers[client] = told
        return answers

    def unmask(self, purpose: str, survivors: Collection[int], answers: Shares) -> Words:
        shown = self.seen[purpose]
        first = next(iter(shown.values()))
        total = Words.zeros(len(first.bulk), len(first.fine))
        for client in survivors:
            secure.add(total, shown[client].pieces(), client)
        dropped = self.dropped(survivors)
        told = (survivors, dropped, answers, self.threshold)
        return secure.unmask(total, purpose, self.keys, *told).words

    def summed(self, purpose: str, survivors: Collection[int], answering: Iterable[int]) -> Words:
        return self.unmask(purpose, survivors, self.reveal(purpose, survivors, answering))


def begin(
    clients: int,
    threshold: int,
    silent: Collection[int] = (),
    opening: Opening = secure.open_session,
) -> Round:
    """Keys of all `clients`, shares of all but the `silent`, delivered to those who sent some."""
    sessions, keys, encrypted_shares = {}, {}, {}
    for client in range(clients):
        sessions[client], keys[client] = opening(PURPOSES)
    there = [client for client in range(clients) if client not in silent]
    for client in there:
        told = secure.share_secrets(sessions[client], client, keys, threshold)
        sessions[client], encrypted_shares[client] = told
    for client in there:
        inbox = {peer: encrypted_shares[peer][client] for peer in there if peer != client}
        sessions[client] = secure.accept_encrypted_shares(sessions[client], inbox)
    return Round(keys, threshold, {client: sessions[client] for client in there})


def trees(client: int, size: int = 40, scale: float = 0.1) -> tuple[Tree, Tree]:
    """A client's numbers: a model's change, and sums and counts."""
    rng = torch.Generator().manual_seed(client)
    bulk = {"layer": {"weight": scale * torch.randn(size, 3, generator=rng)}, "empty": {}}
    sums = 100 * torch.randn(4, 5, generator=rng, dtype=torch.float64)
    fine = {"sums": sums, "counts": torch.randint(10**6, (4,), generator=rng)}
    return bulk, fine


def words(client: int, clients: int, size: int = 40, scale: float = 0.1) -> Words:
    return secure.encode(*trees(client, size, scale), clients, RANGE)


def plain_sum(inputs: Iterable[Words]) -> Words:
    first, *others = inputs
    total = Words(first.bulk.copy(), first.fine.copy())
    for client, other in enumerate(others):
        secure.add(total, other.pieces(), client)
    return total


def same(ours: Words, theirs: Words) -> bool:
    return np.array_equal(ours.bulk, theirs.bulk) and np.array_equal(ours.fine, theirs.fine)
