"""Too little memory on the GPU: cohorts are split, with the same results."""

import gc
import weakref

import pytest
import torch

from fedfm import FedAvg, FedFM, UserError
from fedfm.core.trees import flatten, share
from fedfm.engine import graphs
from fedfm.engine.cohort import Cohort, CohortPart, TrainingResult, gather_results
from fedfm.engine.executors import LoopExecutor, StackedExecutor
from fedfm.engine.graphs import GraphCohort
from fedfm.engine.networks import BoundNetwork
from fedfm.engine.threads import NetworkPool
from fedfm.methods import Moon, Scaffold
from fedfm.methods.base import Model
from fedfm.rounds.round import run_round
from fedfm.rounds.state import to_tree
from fedfm.verify import fixtures

FULL = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 1.00 GiB"
GPU_FULL = torch.OutOfMemoryError(FULL)
CPU_FULL = RuntimeError(
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you "
    "tried to allocate 4000 bytes. Error code 12 (Cannot allocate memory)"
)


@pytest.fixture(autouse=True)
def searched_before():
    """Keep what earlier tests left out of the searches for garbage that are made here."""
    gc.freeze()


@pytest.fixture
def room(monkeypatch):
    """Memory for so many clients at once; gives the cohorts that were trained."""
    works, trained = StackedExecutor.train_cohort, []

    def limit(clients: int, error: RuntimeError = GPU_FULL) -> list[int]:
        def train_cohort(self, job):
            if len(job.plans) > clients:
                raise error
            trained.append(len(job.plans))
            return works(self, job)

        monkeypatch.setattr(StackedExecutor, "train_cohort", train_cohort)
        return trained

    return limit


def rounds_of(fed, rounds=3):
    state = fixtures.start(fed)
    for _ in range(rounds):
        state, log = run_round(state, fed)
    return flatten(to_tree(state)), log


@pytest.mark.parametrize(("clients", "split"), [(2, [2, 2]), (1, [1, 1, 1, 1])])
def test_a_cohort_that_needs_too_much_memory_is_split(room, caplog, clients, split):
    module = fixtures.make_network("mlp", hidden=[8], norm="batch", dtype=torch.float64)
    fed = fixtures.make_federation(module, fixtures.make_images(), Scaffold(), FedFM(start_round=0))
    whole, log = rounds_of(fed)
    trained = room(clients)
    parts, parts_log = rounds_of(fed)
    assert trained == split * 3
    for name, value in parts.items():
        torch.testing.assert_close(value, whole[name], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(parts_log.loss, log.loss, rtol=1e-9, atol=1e-9)
    said = [record.message for record in caplog.records]
    assert len(said) == {2: 1, 1: 2}[clients], "once for every time the cohort was halved"
    assert "training 4 clients at once needs more memory" in said[0]
    assert "(CUDA out of memory. Tried to allocate 2.00 GiB.): 2 at a time" in said[0]


@pytest.mark.parametrize("executor", ["loop", "stacked"])
def test_samples_that_need_too_much_memory_are_measured_in_parts(monkeypatch, caplog, executor):
    module = fixtures.make_network("mlp", hidden=[8], norm="batch", dtype=torch.float64)
    fed = fixtures.make_federation(
        module, fixtures.make_images(), FedFM(start_round=0), executor=executor
    )
    model = fixtures.start(fed).model.map(share)
    whole = fed.executor.measure(model, fed.samples, FedFM().statistic)
    works = BoundNetwork.__call__

    def little(net, inputs):
        if inputs.shape[:2].numel() > 20:
            raise torch.OutOfMemoryError(FULL)
        return works(net, inputs)

    monkeypatch.setattr(BoundNetwork, "__call__", little)
    parts = fed.executor.measure(model, fed.samples, FedFM().statistic)
    for name, value in parts.items():
        torch.testing.assert_close(value, whole[name])
    assert isinstance(fed.executor, LoopExecutor)
    assert fed.executor.samples_at_once == 16
    assert "measuring 32 samples at once needs more memory" in caplog.messages[-1]

    def nothing(net, inputs):
        raise torch.OutOfMemoryError(FULL)

    monkeypatch.setattr(BoundNetwork, "__call__", nothing)
    with pytest.raises(UserError, match="one sample"):
        fed.executor.measure(model, fed.samples, FedFM().statistic)


def test_memory_is_free_when_less_is_tried(monkeypatch):
    """Neither the error, nor captured steps, nor networks keep what did not fit."""
    module = fixtures.make_network("mlp", hidden=[8], norm="batch")
    fed = fixtures.make_federation(module, fixtures.make_images(), Moon(), executor="graph")
    kept: list[weakref.ref[GraphCohort]] = []
    alive: list[bool] = []
    monkeypatch.setattr(graphs, "capture_step", Caught)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: alive.append(kept[-1]() is not None))
    retrain = GraphCohort.retrain

    def short(cohort, job):
        result = retrain(cohort, job)
        kept.append(weakref.ref(cohort))
        if len(job.plans) == 4:
            raise torch.OutOfMemoryError(FULL)
        return result

    monkeypatch.setattr(GraphCohort, "retrain", short)
    gc.disable()
    try:
        rounds_of(fed, rounds=1)
    finally:
        gc.enable()
    assert alive == [False]
    assert len(kept) == 3


class Caught:
    """A captured step that knows its part, as the real one does."""

    def __init__(self, part, block, pool) -> None:
        self.part, self.rows = part, block.rows

    def __call__(self, indices, draws) -> None:
        CohortPart(self.part.cohort, self.rows)(indices, draws)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (GPU_FULL, r"\(CUDA out of memory\. Tried to allocate 2\.00 GiB\.\)"),
        (CPU_FULL, r"\(can't allocate memory: you tried to allocate 4000 bytes\)"),
        (
            RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 9 bytes."),
            r"\(not enough memory: you tried to allocate 9 bytes\)",
        ),
    ],
    ids=["GPU", "CPU", "CPU, other words"],
)
def test_one_client_that_does_not_fit_is_an_error_with_what_to_do(room, error, reason):
    room(0, error)
    module = fixtures.make_network("mlp", hidden=[8])
    fed = fixtures.make_federation(module, fixtures.make_images(), FedAvg())
    with pytest.raises(UserError, match=f"one client.*{reason}.*batch_size"):
        rounds_of(fed)


@pytest.mark.parametrize("executor", ["loop", "threads"])
def test_threads_that_need_too_much_memory_are_halved(monkeypatch, caplog, executor):
    """As long as two clients train at the same time, the CPU's memory is full."""
    module = fixtures.make_network("mlp", hidden=[8], dtype=torch.float64)
    fed = fixtures.make_federation(module, fixtures.make_images(), FedAvg(), executor=executor)
    whole, _ = rounds_of(fed, rounds=1)
    torch.set_num_threads(4)
    works = NetworkPool.map

    def map_little(pool, work, items):
        if min(pool.threads, len(items)) > 1:
            raise CPU_FULL
        return works(pool, work, items)

    monkeypatch.setattr(NetworkPool, "map", map_little)
    try:
        parts, _ = rounds_of(fed, rounds=1)
    finally:
        torch.set_num_threads(1)
    for name, value in parts.items():
        torch.testing.assert_close(value, whole[name], rtol=1e-9, atol=1e-9)
    assert [record.args[::2] for record in caplog.records] == [(4, 2), (2, 1)]


@pytest.mark.parametrize("executor", ["loop", "stacked", "threads"])
def test_a_cpu_without_memory_for_one_client_is_an_error_with_what_to_do(monkeypatch, executor):
    module = fixtures.make_network("mlp", hidden=[8])
    fed = fixtures.make_federation(module, fixtures.make_images(), FedAvg(), executor=executor)

    def nothing(cohort, plans):
        raise CPU_FULL

    monkeypatch.setattr(Cohort, "train", nothing)
    with pytest.raises(UserError, match=r"one client.*4000 bytes.*batch_size"):
        rounds_of(fed)


def test_other_errors_are_not_taken_for_a_lack_of_memory(room):
    room(0, RuntimeError("shapes cannot be multiplied"))
    module = fixtures.make_network("mlp", hidden=[8])
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        rounds_of(fixtures.make_federation(module, fixtures.make_images(), FedAvg()))


def test_a_cohorts_models_are_given_up_before_the_next_trains():
    """However small the cohorts, all clients' models would not fit twice."""
    earlier: list[weakref.ref[torch.Tensor]] = []

    def outcome(clients: torch.Tensor) -> TrainingResult:
        assert not any(leaf() is not None for leaf in earlier)
        weights = clients[:, None] * torch.ones(3)
        earlier.append(weakref.ref(weights))
        terms = {"task": 7.0 * clients, "fedfm": 3.0 * clients}
        return TrainingResult(Model({"w": weights}, {}), 10.0 * clients, clients + 1, terms, {})

    parts = torch.tensor([3, 0, 2, 1]).split(2)
    model, loss, steps, terms, _ = gather_results(map(outcome, parts), parts)
    assert len(earlier) == 2
    assert model.params["w"].tolist() == [[client] * 3 for client in range(4)]
    assert loss.tolist() == [0, 10, 20, 30]
    assert steps.tolist() == [1, 2, 3, 4]
    assert [term.tolist() for term in terms.values()] == [[0, 7, 14, 21], [0, 3, 6, 9]]
