"""Sums over clients, in the clear and masked: the same, without those that do not answer well."""

from secrets import token_bytes

import pytest
import torch
from flwr.app import RecordDict
from flwr.common.secure_aggregation.crypto.shamir import create_shares

from fedfm.config.deployment import Deployment
from fedfm.core.errors import UserError
from fedfm.core.trees import flatten, unflatten
from fedfm.deploy.errors import BadEncryptedShares, Refusal, SecureError
from fedfm.deploy.masking import (
    Masker,
    merge_answer,
    split_answer,
    tree_to_pieces,
    words_to_tree,
)
from fedfm.deploy.packets import Packet
from fedfm.deploy.secure import Words
from fedfm.deploy.secure import client as client_module
from fedfm.deploy.server.masked_sum import average_counters
from fedfm.deploy.server.secure_sums import TRIALS, SecureSums
from fedfm.deploy.server.sums import add_answers, read_sum
from tests.deploy.server.maskers import (
    CLIENTS,
    LIKE,
    Clients,
    answer_of,
    assert_sum_of,
    collected,
    dead,
    lines_of,
    spoil_words,
)

# --- both ways ------------------------------------------------------------------------------------


@pytest.mark.parametrize("secure", [False, True])
def test_the_sum_of_all(secure):
    summed = collected(Clients(secure=secure))
    assert_sum_of(summed, CLIENTS)
    assert int(summed.total["counters"]["seen"]) == (11 if secure else 13)


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("gone", [(0,), (2,), (3,)])
def test_the_sum_without_one_that_does_not_answer(secure, gone):
    summed = collected(Clients(dead("train", *gone), secure))
    assert_sum_of(summed, [client for client in CLIENTS if client not in gone])


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

    summed = collected(Clients(spoil, secure=False))
    floating = flatten(LIKE)[name].is_floating_point()
    assert_sum_of(summed, [0, 1, 3] if floating else CLIENTS)
    told = [record.getMessage() for record in caplog.records]
    assert told == [f"client 2 is left out of 'train': '{name}' is not finite"] * floating


def test_nobody_answers_in_the_clear():
    summed = collected(Clients(lambda *_: None, secure=False))
    assert (summed.total, summed.clients) == ({}, [])


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
            summed = collector.collect(kind, questions, LIKE, ["measure", "train"])
            assert_sum_of(summed, CLIENTS)
    assert clients.seen == 2 * ["keys", "shares", "measure", "reveal", "train", "reveal"]


@pytest.mark.parametrize("kind", ["keys", "shares", "measure", "train", "reveal"])
@pytest.mark.parametrize("client", CLIENTS)
def test_one_that_dies_in_any_phase(kind, client):
    summed = collected(Clients(dead(kind, client)), ("measure", "train"))
    kept = kind in ("measure", "reveal")
    assert_sum_of(summed, [c for c in CLIENTS if c != client or kept])


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
    answer = answer_of(1)["change"]["large"].flatten()
    assert abs(torch.corrcoef(torch.stack([large[: len(answer)], answer]))[0, 1]) < 0.05


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

    summed = collected(Clients(spoil))
    assert_sum_of(summed, CLIENTS if kind == "reveal" else [0, 1, 3])
    (line,) = (record.getMessage() for record in caplog.records)
    assert line.startswith(f"client 2 is left out of '{kind}': ")


# --- masked: faults -------------------------------------------------------------------------------


@pytest.mark.parametrize("times", [1, TRIALS - 1])
def test_a_sum_whose_masks_do_not_cancel_is_repeated(times, caplog):
    """Nobody can be named; the reason is said, and the sum is made again with new keys."""
    clients = Clients(spoil_words(2, times))
    summed = collected(clients)
    assert_sum_of(summed, CLIENTS)
    assert clients.seen == (times + 1) * ["keys", "shares", "train", "reveal"]
    assert [line for line in lines_of(caplog) if "masks do not cancel" in line] == lines_of(caplog)
    assert len(lines_of(caplog)) == times


def test_the_second_sum_of_a_round_is_repeated_alone(caplog):
    clients = Clients(spoil_words(2, 1))
    summed = collected(clients, ("measure", "train"))
    assert_sum_of(summed, CLIENTS)
    first, again = ["keys", "shares", "measure", "reveal", "train", "reveal"], ["keys", "shares"]
    assert clients.seen == [*first, *again, "train", "reveal"]


def test_sums_that_are_lost_again_and_again_end_with_the_reason():
    with pytest.raises(SecureError, match=rf"\b{TRIALS} sums in a row.*do not cancel"):
        collected(Clients(spoil_words(2, 99)))


def spoil_shares(kind, client, packet):
    """Client 2 reveals other shares than it holds."""
    if (kind, client) != ("reveal", 2):
        return packet
    wrong = {k: share[:8] + "00" * 32 for k, share in packet.facts["shares"].items()}
    return Packet({"shares": wrong})


def test_a_client_that_reveals_wrong_shares_is_named_and_left_out(caplog):
    """The others' shares are enough for this sum."""
    clients = Clients(spoil_shares)
    collector = SecureSums(clients.ask, Deployment(secure=True))
    questions = {client: Packet({}) for client in CLIENTS}
    assert_sum_of(collector.collect("train", questions, LIKE, ["train"]), CLIENTS)
    assert lines_of(caplog) == ["client 2 is left out from now on: its shares are wrong"]
    assert_sum_of(collector.collect("train", questions, LIKE, ["train"]), [0, 1, 3])


def spoil_encrypted_shares(*receivers):
    """Client 2 writes encrypted shares to some others that these cannot read."""

    def spoil(kind, client, packet):
        if (kind, client) != ("shares", 2):
            return packet
        encrypted_shares = packet.facts["letters"]
        return Packet({"letters": encrypted_shares | {str(k): "?" for k in receivers}})

    return spoil


class ComplainingClients(Clients):
    """Clients that say whose encrypted shares they cannot read, as `Client.answer` does."""

    def say(self, kind, client, question):
        try:
            return super().say(kind, client, question)
        except BadEncryptedShares as problem:
            return Packet({"accused": problem.client, "reason": str(problem)})


def test_a_client_whose_shares_most_cannot_read_is_named_and_left_out(caplog):
    clients = ComplainingClients(spoil_encrypted_shares(0, 1, 3))
    summed = collected(clients)
    assert_sum_of(summed, [0, 1, 3])
    assert clients.seen == ["keys", "shares", "train", "keys", "shares", "train", "reveal"]
    (line,) = (line for line in lines_of(caplog) if "from now on" in line)
    assert line.startswith("client 2 is left out from now on: ")


def test_one_complaint_does_not_show_who_lies(caplog):
    """The one that complains misses the sum; the log names both."""
    summed = collected(ComplainingClients(spoil_encrypted_shares(0)))
    assert_sum_of(summed, [1, 2, 3])
    (line,) = lines_of(caplog)
    assert line.startswith("client 0 is left out of 'train': client 2: its encrypted shares")


def test_a_client_that_gives_others_wrong_shares_is_named_and_left_out(caplog, monkeypatch):
    """Its encrypted shares can be read, but what they hold does not give its secrets."""
    clients = Clients()
    honest = create_shares

    def say(kind, client, question):
        def wrong(secret, threshold, count):
            return honest(token_bytes(len(secret)), threshold, count)

        monkeypatch.setattr(client_module, "create_shares", wrong if client == 2 else honest)
        return Clients.say(clients, kind, client, question)

    monkeypatch.setattr(clients, "say", say)
    summed = collected(clients)
    assert_sum_of(summed, [0, 1, 3])
    (line,) = (line for line in lines_of(caplog) if "from now on" in line)
    assert line.startswith("client 2 is left out from now on: ")


def test_a_sum_that_cannot_be_true_is_repeated(caplog):
    """It shows only that somebody lies, not who."""
    left = [1]

    def check(total, clients):
        assert clients == len(CLIENTS)
        if left[0]:
            left[0] -= 1
            raise UserError("the sum of 'weight' is not positive")

    clients = Clients()
    collector = SecureSums(clients.ask, Deployment(secure=True), check)
    questions = {client: Packet({}) for client in CLIENTS}
    assert_sum_of(collector.collect("train", questions, LIKE, ["train"]), CLIENTS)
    (line,) = lines_of(caplog)
    assert "'weight' is not positive" in line


def test_a_client_refuses_a_threshold_below_its_minimum():
    clients = Clients()
    for masker in clients.maskers.values():
        masker.expect(minimum=4)
    with pytest.raises(SecureError, match=r"\b3\b.*at least 4\b"):
        collected(clients, threshold=3)


def test_a_client_that_knows_no_minimum_shares_nothing():
    clients = Clients()
    clients.maskers[0] = Masker(RecordDict())
    with pytest.raises(Refusal, match=r"deployment\.minimum"):
        collected(clients)


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
