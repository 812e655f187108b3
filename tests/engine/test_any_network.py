"""Networks of every kind are stacked, and train as they do in a loop."""

import pytest
import torch
from torch import Tensor, nn

from fedfm.core.trees import flatten
from fedfm.data import Dataset, Split
from fedfm.engine.choice import make_executor
from fedfm.engine.executors import StackedExecutor
from fedfm.engine.stacked_networks import Exceptions, MappedNetwork, StackedNetwork, stack_network
from fedfm.engine.stacking.layers import Unstackable
from fedfm.methods import FedAvg, Moon, Piece
from fedfm.rounds.round import open_round, run_round
from fedfm.verify import fixtures
from tests.engine.networks import EVERY, FOLDED, IDS, MAPPED, ONE_BY_ONE, VOCABULARY, make

FEDAVG = FedAvg()
pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")


def make_data(shape: tuple[int, ...]) -> Dataset:
    """Return random samples; if the shape is that of ids, texts that end in padding."""
    if shape != IDS:
        return fixtures.make_images(shape=shape, dtype=torch.float64)
    rng = torch.Generator().manual_seed(0)
    size = sum(fixtures.SIZES)
    labels = torch.randint(fixtures.CLASSES, (size,), generator=rng)
    ids = torch.randint(1, VOCABULARY, (size, *shape), generator=rng)
    lengths = torch.randint(3, shape[0] + 1, (size, 1), generator=rng)
    split = Split(ids * (torch.arange(shape[0]) < lengths), labels)
    return Dataset("ids", split, split, tuple("abcde"), keep_order=True)


def train(name: str, executor: str, piece: Piece = FEDAVG, rounds: int = 2, **settings):
    """Return the trained state, and the executor."""
    module, data = make(name), make_data(EVERY[name][1])
    made = make_executor(executor, module, fixtures.make_device_data(data, module))
    fed = fixtures.make_federation(module, data, piece, executor=made, epochs=1, **settings)
    state = fixtures.start(fed)
    for _ in range(rounds):
        state, _ = run_round(state, fed)
    return state, made


def assert_close(one, other) -> None:
    ours, theirs = flatten(one.model._asdict()), flatten(other.model._asdict())
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        torch.testing.assert_close(value, theirs[name], rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", EVERY)
def test_stacked_clients_learn_what_clients_in_a_loop_learn(name):
    loop, _ = train(name, "loop", keep_last=True)
    stacked, executor = train(name, "stacked", keep_last=True)
    assert type(executor) is StackedExecutor
    assert_close(stacked, loop)


@pytest.mark.parametrize("name", ["vision transformer, dropout", "encoder", "averaging"])
def test_further_models_and_threads_change_nothing(name):
    """MOON keeps two further models, one of them the same for all clients."""
    loop, _ = train(name, "loop", Moon())
    torch.set_num_threads(2)
    threads, _ = train(name, "threads", Moon())
    again, _ = train(name, "threads", Moon())
    assert_close(threads, loop)
    ours, theirs = flatten(threads.model._asdict()), flatten(again.model._asdict())
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())


def stack(name: str) -> StackedNetwork:
    data = fixtures.make_device_data(make_data(EVERY[name][1]), make(name))
    return stack_network(make(name), data.fetch_first(2, 3))


@pytest.mark.parametrize("name", MAPPED)
def test_whatever_surrounds_the_layers_is_mapped(name):
    net = stack(name)
    assert isinstance(net, MappedNetwork)
    assert net.exceptions == Exceptions([], evaluation=name == "encoder")


@pytest.mark.parametrize("name", ONE_BY_ONE)
def test_only_the_layer_that_cannot_be_mapped_computes_clients_one_by_one(name):
    net = stack(name)
    assert isinstance(net, MappedNetwork)
    assert net.exceptions == Exceptions(ONE_BY_ONE[name][2])


@pytest.mark.parametrize("name", FOLDED)
def test_clients_are_concatenated_where_layers_allow_it(name):
    assert type(stack(name)) is StackedNetwork


class Branching(nn.Module):
    """Takes one of two ways by the values of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.ones(()))
        self.first, self.second = nn.Linear(12, 6), nn.Linear(12, 6)
        self.norm, self.dropout = nn.BatchNorm1d(6), nn.Dropout(0.3)
        self.head = nn.Linear(6, fixtures.CLASSES)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = x + self.shift
        y = self.first(x) + 0 * self.second(x) if x.mean() > 1.5 else self.second(x) * self.first(x)
        features = self.dropout(self.norm(y))
        return features, self.head(features)


def test_a_batch_for_which_clients_take_different_branches_is_computed_one_by_one(monkeypatch):
    torch.manual_seed(0)
    module, data = Branching().double(), make_data((12,))
    device_data = fixtures.make_device_data(data, module)
    ends, alone = [], list[Tensor]()
    run = MappedNetwork._run_one_by_one

    def spied(net: MappedNetwork, inputs: Tensor) -> tuple[Tensor, Tensor]:
        alone.append(inputs)
        return run(net, inputs)

    monkeypatch.setattr(MappedNetwork, "_run_one_by_one", spied)
    for name in ("loop", "stacked"):
        executor = make_executor(name, module, device_data)
        fed = fixtures.make_federation(module, data, FedAvg(), executor=executor)
        job = open_round(fixtures.start(fed), fed).job
        alone.clear()
        ends.append(executor.train(job))
    assert 0 < len(alone) < max(plan.steps for plan in job.plans), "some batches, not all"
    torch.testing.assert_close(ends[0], ends[1], rtol=1e-9, atol=1e-10)


class Counting(nn.Module):
    """Reads a number on the host, which differs from client to client."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(12, 6), nn.Linear(6, fixtures.CLASSES)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.inner(x) * float(x.detach().std())
        return features, self.head(features)


def test_what_cannot_be_stacked_is_named():
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = Counting()

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.net(x)

    with pytest.raises(Unstackable, match=r"layer 'net'.*\.item\(\)"):
        stack_network(Outer(), torch.zeros(2, 3, 12))
