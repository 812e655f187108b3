"""Clients that mask their answers, without a network and without training."""

import torch
from flwr.app import RecordDict

from fedfm.config.deployment import Deployment
from fedfm.core.trees import Tree, flatten, to_device
from fedfm.deploy.masking import MASKING, Masker
from fedfm.deploy.packets import Packet
from fedfm.deploy.server.secure_sums import SecureSums
from fedfm.deploy.server.sums import PlainSums, add_answers

CLIENTS = range(4)


def answer_of(client: int) -> Tree:
    """A client's answer: something of every kind."""
    draw = torch.Generator().manual_seed(client)
    return {
        "change": {
            "large": torch.randn(80, 80, generator=draw),
            "small": torch.randn(3, generator=draw),
        },
        "counters": {"seen": torch.tensor(10 + client)},
        "reports": {"count": torch.arange(3) + client, "sums": torch.randn(3, 2, generator=draw)},
        "empty": {},
        "weight": torch.tensor(1.5 + client, dtype=torch.float64),
    }


LIKE = to_device(answer_of(0), "meta")


class Clients:
    """Clients without a network: `spoil` may change what they say, or take it away."""

    def __init__(self, spoil=lambda kind, client, packet: packet, secure=True, count=4):
        self.maskers = {client: Masker(RecordDict()) for client in range(count)}
        for masker in self.maskers.values():
            masker.expect(minimum=2)
        self.spoil, self.secure = spoil, secure
        self.seen = []
        self.asked = []
        """Every kind of question with the clients that were asked together."""

    def ask(self, kind, questions):
        self.seen.append(kind)
        self.asked.append((kind, sorted(questions)))
        said = {}
        for client, question in questions.items():
            packet = self.spoil(kind, client, self.say(kind, client, question))
            if packet is not None:
                said[client] = packet
        return said

    def say(self, kind, client, question):
        masker = self.maskers[client]
        if kind in MASKING:
            return getattr(masker, MASKING[kind])(question)
        tree = answer_of(client)
        return masker.mask(kind, question, tree) if self.secure else Packet({}, {"sum": tree})


def collected(clients, kinds=("train",), **settings):
    """The last sum of a round."""
    deployment = Deployment(secure=True, **settings)
    collector = (
        SecureSums(clients.ask, deployment)
        if clients.secure
        else PlainSums(clients.ask, lambda client, question, answer: answer)
    )
    questions = {client: Packet({}) for client in CLIENTS}
    for kind in kinds:
        found = collector.collect(kind, questions, LIKE, list(kinds))
    return found


def assert_sum_of(found, clients, atol=1e-6):
    wanted = add_answers([answer_of(client) for client in clients])
    assert found.clients == list(clients)
    ours, theirs = flatten(found.total), flatten(wanted)
    assert ours.keys() == theirs.keys()
    for name in theirs.keys() - {"counters/seen"}:
        torch.testing.assert_close(ours[name], theirs[name], rtol=0, atol=atol)
    assert found.total["empty"] == {}


def dead(kind, *clients):
    return lambda k, client, packet: None if (k, client) in {(kind, c) for c in clients} else packet


def lines_of(caplog):
    return [record.getMessage() for record in caplog.records]


def spoil_words(client, times):
    """That client sends other words than it should, so many times."""
    left = [times]

    def spoil(kind, who, packet):
        if kind != "train" or who != client or not left[0]:
            return packet
        left[0] -= 1
        words = {name: leaf + 1 for name, leaf in packet.trees["words"].items()}
        return Packet({}, {"words": words})

    return spoil
