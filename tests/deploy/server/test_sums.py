"""Sums over clients, in the clear and masked: the same, without those that do not answer well."""

import pytest
import torch
from flwr.app import RecordDict

from fedfm.config.deployment import Deployment
from fedfm.core.errors import UserError
from fedfm.core.trees import Tree, flatten, to_device, unflatten
from fedfm.deploy.errors import SecureError
from fedfm.deploy.masking import (
    MASKING,
    Masker,
    merge_answer,
    split_answer,
    tree_to_pieces,
    words_to_tree,
)
from fedfm.deploy.packets import Packet
from fedfm.deploy.secure import Words
from fedfm.deploy.server.sums import PlainSums, SecureSums, add_answers, average_counters, read_sum

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

    def __init__(self, spoil=lambda kind, client, packet: packet, secure=True):
        self.maskers = {client: Masker(RecordDict()) for client in CLIENTS}
        self.spoil, self.secure = spoil, secure
        self.seen = []

    def ask(self, kind, questions):
        self.seen.append(kind)
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


# --- both ways ------------------------------------------------------------------------------------


@pytest.mark.parametrize("secure", [False, True])
def test_the_sum_of_all(secure):
    found = collected(Clients(secure=secure))
    assert_sum_of(found, CLIENTS)
    assert int(found.total["counters"]["seen"]) == (11 if secure else 13)


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("gone", [(0,), (2,), (3,)])
def test_the_sum_without_one_that_does_not_answer(secure, gone):
    found = collected(Clients(dead("train", *gone), secure))
    assert_sum_of(found, [client for client in CLIENTS if client not in gone])


# --- in the clear ---------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", flatten(LIKE))
def test_no_number_that_is_not_finite_gets_into_a_sum(name, value, caplog):
    def spoil(kind, client, packet):
        leaves = flatten(packet.trees["sum"])
        if client != 2 or not leaves[name].is_floating_point():
            return packet
        leaves[name] = torch.full_like(leaves[name], value)
        return Packet({}, {"sum": unflatten(leaves)})

    found = collected(Clients(spoil, secure=False))
    floating = flatten(LIKE)[name].is_floating_point()
    assert_sum_of(found, [0, 1, 3] if floating else CLIENTS)
    told = [record.getMessage() for record in caplog.records]
    assert told == [f"client 2 is left out of 'train': '{name}' is not finite"] * floating


def test_nobody_answers_in_the_clear():
    found = collected(Clients(lambda *_: None, secure=False))
    assert (found.total, found.clients) == ({}, [])


def test_an_answer_without_a_sum():
    with pytest.raises(UserError, match="no sum"):
        read_sum(Packet({}, {"words": {}}), LIKE)


def test_counters_are_the_largest_and_in_a_masked_sum_the_mean():
    trees = [{"counters": {"n": torch.tensor(n)}, "x": torch.tensor(1.0)} for n in (3, 9, 5)]
    assert int(add_answers(trees)["counters"]["n"]) == 9
    assert int(average_counters({"counters": {"n": torch.tensor(17)}}, 3)["counters"]["n"]) == 5
    assert average_counters({"x": 1}, 3) == {"x": 1}


# --- masked ---------------------------------------------------------------------------------------


def test_keys_serve_all_sums_of_a_round_and_none_of_the_next():
    clients = Clients()
    collector = SecureSums(clients.ask, Deployment(secure=True))
    questions = {client: Packet({}) for client in CLIENTS}
    for _ in range(2):
        for kind in ("measure", "train"):
            found = collector.collect(kind, questions, LIKE, ["measure", "train"])
            assert_sum_of(found, CLIENTS)
    assert clients.seen == 2 * ["keys", "shares", "measure", "reveal", "train", "reveal"]


@pytest.mark.parametrize("kind", ["keys", "shares", "measure", "train", "reveal"])
@pytest.mark.parametrize("client", CLIENTS)
def test_one_that_dies_in_any_phase(kind, client):
    found = collected(Clients(dead(kind, client)), ("measure", "train"))
    kept = kind in ("measure", "reveal")
    assert_sum_of(found, [c for c in CLIENTS if c != client or kept])


@pytest.mark.parametrize("kind", ["keys", "shares", "train", "reveal"])
def test_one_too_many_ends_the_sum_with_a_reason(kind):
    with pytest.raises(SecureError, match=r"\b2\b.*\b3\b"):
        collected(Clients(dead(kind, 1, 2), secure=True), threshold=3)


def test_nobody_has_keys():
    with pytest.raises(SecureError, match=r"\b0\b"):
        collected(Clients(dead("keys", *CLIENTS)))


def test_a_threshold_that_is_asked_for():
    assert_sum_of(collected(Clients(dead("reveal", 0)), threshold=3), CLIENTS)
    with pytest.raises(SecureError, match=r"\b3\b.*\b4\b"):
        collected(Clients(dead("reveal", 0)), threshold=4)


def test_no_answer_of_one_client_is_seen():
    """What the server gets of a client is not its answer, nor the same twice."""
    words = []

    def spoil(kind, client, packet):
        if kind == "train" and client == 1:
            words.append([*flatten(packet.trees["words"]).values()])
        return packet

    for _ in range(2):
        collected(Clients(spoil))
    first, second = words
    for a, b in zip(first, second, strict=True):
        assert (a == b).float().mean() < 0.01
    large = first[0].float() * 2.0**-23
    own = answer_of(1)["change"]["large"].flatten()
    assert abs(torch.corrcoef(torch.stack([large[: len(own)], own]))[0, 1]) < 0.05


WORDS = {
    "a word less": lambda words: {name: leaf[:-1] for name, leaf in words.items()},
    "floats": lambda words: {name: leaf.float() for name, leaf in words.items()},
    "half floats": lambda words: {name: leaf.bfloat16() for name, leaf in words.items()},
    "a number": lambda words: {name: leaf[0].double() for name, leaf in words.items()},
    "branches": lambda words: {name: {"deeper": leaf} for name, leaf in words.items()},
    "nothing": lambda words: {},
    "a piece more": lambda words: words | {"9": torch.ones(3)},
}


@pytest.mark.parametrize("name", WORDS)
def test_words_of_another_form_are_left_out(name, caplog):
    def spoil(kind, client, packet):
        bad = (kind, client) == ("train", 2)
        return Packet({}, {"words": WORDS[name](packet.trees["words"])}) if bad else packet

    assert_sum_of(collected(Clients(spoil)), [0, 1, 3])
    (line,) = (record.getMessage() for record in caplog.records)
    assert line.startswith("client 2 is left out of 'train': ")


@pytest.mark.parametrize(
    ("kind", "fact"), [("keys", "public"), ("shares", "letters"), ("reveal", "shares")]
)
@pytest.mark.parametrize(
    "value", [None, {}, [], 7, "x", "{}", {"0": "zz"}, {"0": 1}, {"x": "00"}, {"0": None}]
)
def test_facts_of_another_form_are_left_out(kind, fact, value, caplog):
    """Of what reveals the sum, the others' part is enough."""

    def spoil(asked, client, packet):
        return Packet({fact: value}) if (asked, client) == (kind, 2) else packet

    found = collected(Clients(spoil))
    assert_sum_of(found, CLIENTS if kind == "reveal" else [0, 1, 3])
    (line,) = (record.getMessage() for record in caplog.records)
    assert line.startswith(f"client 2 is left out of '{kind}': ")


def test_too_large_a_number_is_refused_by_the_client_itself():
    """It would wrap around."""
    with pytest.raises(UserError, match=r"deployment\.range\b.*\blr\b"):
        collected(Clients(), range=0.5)


# --- pieces ---------------------------------------------------------------------------------------


def test_answers_are_divided_and_reunited():
    tree = answer_of(1)
    bulk, fine = split_answer(tree)
    assert [*flatten(bulk)] == ["change/large"]
    assert flatten(merge_answer(bulk, fine)).keys() == flatten(tree).keys()


def test_the_order_in_which_an_answer_was_written_does_not_matter():
    tree = answer_of(1)
    other = unflatten(dict(reversed(flatten(tree).items())))
    for ours, theirs in zip(split_answer(tree), split_answer(other), strict=True):
        assert [*flatten(ours)] == [*flatten(theirs)]


def test_words_travel_as_tensors():
    words = Words.zeros(5, 3)
    words.bulk[:], words.fine[:] = 2**32 - 1, 2**64 - 1
    tree = words_to_tree(words)
    assert {leaf.dtype for leaf in tree.values()} == {torch.int32, torch.int64}
    for ours, theirs in zip(tree_to_pieces(tree), words.pieces(), strict=True):
        assert ours.dtype == theirs.dtype
        assert (ours == theirs).all()
