"""Sums come out right, whoever drops out; where too many do, the sum ends with a clear error."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedfm.core.trees import flatten
from fedfm.deploy import secure
from fedfm.deploy.errors import SecureError
from fedfm.deploy.secure import Session
from tests.deploy.secure.rounds import RANGE, begin, plain_sum, same, trees, words

CLIENTS, THRESHOLD = 5, 3


def inputs(clients):
    return {client: words(client, CLIENTS) for client in clients}


@st.composite
def histories(draw):
    """Clients, threshold, and who is there at each stage: never fewer than the threshold."""
    clients = draw(st.integers(2, 7))
    threshold = draw(st.integers(max(2, clients // 2 + 1), clients))

    def some(of):
        return draw(st.sets(st.sampled_from(sorted(of)), min_size=threshold))

    there = some(range(clients))
    stages = [some(there) for _ in range(2)]
    return clients, threshold, there, [(stage, some(stage)) for stage in stages]


@given(histories())
@settings(max_examples=25, deadline=None)
def test_sums_are_exact_whoever_drops_out(history):
    clients, threshold, there, stages = history
    round = begin(clients, threshold, silent=set(range(clients)) - there)
    for purpose, (survivors, answering) in zip(("measure", "train"), stages, strict=True):
        given_in = {client: words(client, clients) for client in survivors}
        round.contribute(purpose, given_in)
        found = round.summed(purpose, survivors, answering)
        assert same(found, plain_sum(given_in.values()))


def test_the_sum_of_numbers_is_exact_to_quantisation():
    round = begin(CLIENTS, THRESHOLD)
    round.contribute("train", inputs(range(CLIENTS)))
    found = round.summed("train", range(CLIENTS), range(CLIENTS))
    bulk, fine = secure.decode(found, *trees(0), CLIENTS, RANGE)
    each = [trees(client) for client in range(CLIENTS)]
    exact = sum(given_in["layer"]["weight"].double() for given_in, _ in each)
    off = (bulk["layer"]["weight"].double() - exact).abs().max()
    assert off <= CLIENTS * secure.word_unit(RANGE) / 2 + exact.abs().max() * 2**-24
    assert bulk["layer"]["weight"].dtype == torch.float32
    assert torch.equal(fine["counts"], sum(given_in["counts"] for _, given_in in each))
    sums = sum(given_in["sums"] for _, given_in in each)
    assert (fine["sums"] - sums).abs().max() <= CLIENTS * 2**-25 + 1e-12
    assert flatten(bulk).keys() == {"layer/weight"}
    assert bulk["empty"] == {}


@pytest.mark.parametrize("lost", [*itertools.combinations(range(CLIENTS), CLIENTS - THRESHOLD)])
def test_any_two_of_five_may_be_lost_in_the_second_sum(lost):
    round = begin(CLIENTS, THRESHOLD)
    left = set(range(CLIENTS)) - set(lost)
    round.contribute("measure", inputs(range(CLIENTS)))
    first = round.summed("measure", range(CLIENTS), range(CLIENTS))
    assert same(first, plain_sum(inputs(range(CLIENTS)).values()))
    round.contribute("train", inputs(left))
    assert same(round.summed("train", left, left), plain_sum(inputs(left).values()))


def test_a_client_that_missed_the_first_sum_takes_part_in_the_second():
    round = begin(CLIENTS, THRESHOLD)
    round.contribute("measure", inputs({1, 2, 3, 4}))
    round.summed("measure", {1, 2, 3, 4}, {1, 2, 3, 4})
    round.contribute("train", inputs({0, 1, 2}))
    found = round.summed("train", {0, 1, 2}, {0, 1, 2})
    assert same(found, plain_sum(inputs({0, 1, 2}).values()))


def test_a_late_client_is_left_out_and_may_still_help():
    round = begin(CLIENTS, THRESHOLD)
    round.contribute("train", inputs(range(CLIENTS)))
    found = round.summed("train", {0, 1, 2, 3}, {1, 2, 3, 4})
    assert same(found, plain_sum(inputs({0, 1, 2, 3}).values()))


def test_too_few_with_shares():
    with pytest.raises(SecureError, match=r"\b2\b.*shares\b.*\b3\b"):
        begin(CLIENTS, THRESHOLD, silent={0, 1, 2})


def test_too_few_contributions():
    round = begin(CLIENTS, THRESHOLD)
    round.contribute("train", inputs({0, 1}))
    with pytest.raises(SecureError, match=r"\b2\b.*'train'.*\b3\b"):
        round.reveal("train", {0, 1}, {0, 1})
    with pytest.raises(SecureError, match=r"'train'.*\b2\b.*contributed.*\b3\b"):
        round.unmask("train", {0, 1}, {})


def test_too_few_answers():
    round = begin(CLIENTS, THRESHOLD)
    round.contribute("train", inputs(range(CLIENTS)))
    with pytest.raises(SecureError, match=r"'train'.*\b2\b.*answered.*\b3\b"):
        round.summed("train", range(CLIENTS), {0, 1})


def test_a_late_client_does_not_count_for_its_own_key():
    round = begin(CLIENTS, THRESHOLD)
    round.contribute("train", inputs({0, 1, 2, 3}))
    with pytest.raises(SecureError, match=r"\b2\b.*client 4\b.*\b3\b"):
        round.summed("train", {0, 1, 2, 3}, {0, 1, 4})


def test_a_session_goes_through_bytes_at_every_step():
    round = begin(CLIENTS, THRESHOLD)
    again = {}
    for client, session in round.sessions.items():
        again[client] = Session.from_bytes(session.to_bytes())
        assert again[client] == session
    round.sessions = again
    round.contribute("train", inputs(range(CLIENTS)))
    round.reveal("train", range(CLIENTS), [0])
    session = round.sessions[0]
    assert Session.from_bytes(session.to_bytes()) == session
    assert same(
        round.summed("train", range(CLIENTS), range(CLIENTS)),
        plain_sum(inputs(range(CLIENTS)).values()),
    )
