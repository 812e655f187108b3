"""Clients side by side on CPU threads: the results of one thread, and its settings afterwards."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedfm import models
from fedfm.engine.networks import BoundNetwork
from fedfm.engine.profile import Profile
from fedfm.engine.threads import NetworkPool
from fedfm.methods import FedAvg, FedFM, Moon, Piece
from fedfm.rounds.round import open_round
from fedfm.verify import fixtures


@pytest.fixture
def threads():
    """Sets the number of threads; it is 1 again afterwards."""
    yield torch.set_num_threads
    torch.set_num_threads(1)


def number_of_threads() -> set[int]:
    """How many threads an operation has here, and in a thread that begins now."""
    with ThreadPoolExecutor(1) as pool:
        return {torch.get_num_threads(), pool.submit(torch.get_num_threads).result()}


def trained(module: nn.Module, piece: Piece):
    """The outcome of a round's local training, and the executor."""
    fed = fixtures.make_federation(module, fixtures.make_images(), piece, executor="loop")
    return fed.executor.train(open_round(fixtures.start(fed), fed).job), fed.executor


def assert_equal(one, other):
    for ours, theirs in zip(one.model, other.model, strict=True):
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(value, theirs[name]) for name, value in ours.items())
    assert torch.equal(one.loss, other.loss)
    assert torch.equal(one.steps, other.steps)


@pytest.mark.parametrize("count", [2, 3, 9])
@pytest.mark.parametrize(
    "piece",
    [FedAvg(), FedFM(strength=1.0, start_round=0), Moon()],
    ids=lambda piece: piece.name,
)
def test_threads_change_no_bit(threads, piece, count):
    """Every client is computed by one thread, so the result equals that of one thread."""
    alone, _ = trained(fixtures.make_network(norm="batch"), piece)
    threads(count)
    together, executor = trained(fixtures.make_network(norm="batch"), piece)
    assert len(executor.pool.nets) == min(count, 4), "a network each, and no more than clients"
    assert number_of_threads() == {count}
    assert_equal(together, alone)


@pytest.mark.parametrize("count", [1, 2, 3, 9])
def test_a_stack_for_each_thread_gives_the_results_of_one(threads, count):
    module, data = (
        fixtures.make_network(norm="batch", dtype=torch.float64),
        fixtures.make_images(dtype=torch.float64),
    )
    fed = fixtures.make_federation(module, data, Moon(), executor="threads", keep_last=True)
    job = open_round(fixtures.start(fed), fed).job
    threads(count)
    found = fed.executor.train(job)
    expected = fixtures.make_federation(module, data, Moon(), executor="stacked", keep_last=True)
    torch.testing.assert_close(found, expected.executor.train(job), rtol=1e-10, atol=1e-10)


def test_networks_are_made_once(threads):
    threads(2)
    pool = NetworkPool(BoundNetwork(fixtures.make_network("mlp")))
    pool.map(lambda net, client: None, range(4))
    made = list(pool.nets)
    pool.map(lambda net, client: None, range(4))
    assert pool.nets == made


def test_no_network_is_in_two_hands_and_results_keep_their_order(threads):
    threads(2)
    pool, used, meeting = (
        NetworkPool(BoundNetwork(fixtures.make_network("mlp"))),
        set[int](),
        threading.Barrier(2),
    )

    def work(net: BoundNetwork, client: int) -> tuple[int, int]:
        assert id(net) not in used
        used.add(id(net))
        meeting.wait(30)  # until another client is at work as well
        used.remove(id(net))
        return client, torch.get_num_threads()

    assert pool.map(work, range(6)) == [(client, 1) for client in range(6)]


def test_an_error_comes_through_and_leaves_the_number_of_threads(threads):
    threads(2)
    pool = NetworkPool(BoundNetwork(fixtures.make_network("mlp")))

    def work(net: BoundNetwork, client: int) -> None:
        if client == 2:
            raise KeyError("client 2")

    with pytest.raises(KeyError, match="client 2"):
        pool.map(work, range(4))
    assert number_of_threads() == {2}
    assert pool.map(lambda net, client: client, range(4)) == [0, 1, 2, 3], "and the pool goes on"


def test_while_a_profile_counts_there_is_one_thread(threads):
    threads(2)
    pool = NetworkPool(BoundNetwork(fixtures.make_network("mlp")))
    with Profile():
        seen = pool.map(lambda net, client: (net, threading.current_thread()), range(4))
    assert set(seen) == {(pool.nets[0], threading.main_thread())}


class Noisy(nn.Module):
    """Drops features by a call, which no list of layers shows."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(64, 6), nn.Linear(6, fixtures.CLASSES)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = F.dropout(self.body(x.flatten(1)), 0.5, self.training)
        return features, self.head(features)


def dropping() -> nn.Module:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.Dropout(0.5))
    return models.BodyAndHead(body, nn.Linear(6, fixtures.CLASSES))


@pytest.mark.parametrize(
    ("module", "random"),
    [
        (dropping(), True),
        (Noisy(), True),
        (fixtures.make_network("mlp"), False),
        (fixtures.make_network(norm="batch"), False),
        (models.BodyAndHead(nn.Sequential(nn.Flatten(), nn.Dropout(0.0)), nn.Linear(64, 5)), False),
    ],
    ids=["dropout layer", "dropout call", "mlp", "cnn", "dropout of nothing"],
)
def test_the_first_step_shows_whether_a_network_draws_numbers(module, random):
    before = torch.get_rng_state()
    _, executor = trained(module, FedAvg())
    assert executor.net.random is random
    assert torch.equal(before, torch.get_rng_state()), "the numbers have keys of their own"


@pytest.mark.parametrize("make", [dropping, Noisy], ids=["layer", "call"])
def test_clients_that_draw_numbers_are_the_same_to_the_bit_on_any_threads(threads, make):
    torch.manual_seed(3)
    module = make()
    alone, _ = trained(module, FedAvg())
    threads(2)
    torch.manual_seed(4)
    again, executor = trained(module, FedAvg())
    assert len(executor.pool.nets) == 2
    assert_equal(again, alone)
