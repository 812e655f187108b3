"""The clients of a round are dealt to processes: as many to each, and alike in size."""

from hypothesis import given
from hypothesis import strategies as st

from fedfm.rounds.shared_round import deal_clients


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=40), st.integers(1, 9))
def test_every_client_goes_to_one_process_and_each_gets_equally_many(sizes, processes):
    shares = deal_clients(range(len(sizes)), dict(enumerate(sizes)), processes)
    assert sorted(client for share in shares for client in share) == [*range(len(sizes))]
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert all(share == sorted(share) for share in shares)


@given(st.lists(st.integers(1, 1000), min_size=8, max_size=8))
def test_two_processes_get_about_as_many_samples(sizes):
    shares = deal_clients(range(8), dict(enumerate(sizes)), 2)
    first, second = (sum(sizes[client] for client in share) for share in shares)
    assert abs(first - second) <= max(sizes)


def test_the_largest_clients_go_to_different_processes():
    assert deal_clients([1, 3, 7, 10], {10: 5, 3: 5, 7: 9, 1: 5}, 2) == [[7, 10], [1, 3]]
