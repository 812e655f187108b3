"""Too little memory on the GPU: cohorts are split, with the same results."""

import gc
import weakref

import pytest
import torch

from fedfm import FedAvg, FedFM, UserError
from fedfm.core.trees import flatten, share
from fedfm.engine import graphs
from fedfm.engine.cohort import CohortPart, TrainingResult, gather_results
from fedfm.engine.executors import LoopExecutor, StackedExecutor
from fedfm.engine.graphs import GraphCohort
from fedfm.engine.networks import BoundNetwork
from fedfm.methods import Moon, Scaffold
from fedfm.methods.base import Model
from fedfm.rounds.round import run_round
from fedfm.rounds.state import to_tree
from tests import worlds

FULL = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 1.00 GiB"


@pytest.fixture
def room(monkeypatch):
    """Memory for so many clients at once; gives the cohorts that were trained."""
    works, trained = StackedExecutor.train_cohort, []

    def limit(clients: int) -> list[int]:
        def together(self, start, plans, objective, sgd):
            if len(plans) > clients:
                raise torch.OutOfMemoryError(FULL)
            trained.append(len(plans))
            return works(self, start, plans, objective, sgd)

        monkeypatch.setattr(StackedExecutor, "train_cohort", together)
        return trained

    return limit


def rounds_of(fed, module, rounds=3):
    state = worlds.start(module, fed)
    for _ in range(rounds):
        state, log = run_round(state, fed)
    return flatten(to_tree(state)), log


@pytest.mark.parametrize(("clients", "split"), [(2, [2, 2]), (1, [1, 1, 1, 1])])
def test_a_cohort_that_needs_too_much_memory_is_split(room, caplog, clients, split):
    module = worlds.network("mlp", hidden=[8], norm="batch", dtype=torch.float64)
    fed = worlds.federation(module, worlds.images(), Scaffold(), FedFM(start_round=0))
    whole, log = rounds_of(fed, module)
    trained = room(clients)
    parts, parts_log = rounds_of(fed, module)
    assert trained == split * 3
    for name, value in parts.items():
        torch.testing.assert_close(value, whole[name], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(parts_log.loss, log.loss, rtol=1e-9, atol=1e-9)
    said = [record.message for record in caplog.records]
    assert len(said) == {2: 1, 1: 2}[clients], "once for every time the cohort was halved"
    assert said[0] == (
        "4 clients at once need more memory than the GPU has (CUDA out of memory. Tried to "
        "allocate 2.00 GiB.): 2 at a time from now on"
    )


@pytest.mark.parametrize("executor", ["loop", "stacked"])
def test_samples_that_need_too_much_memory_are_measured_in_parts(monkeypatch, caplog, executor):
    module = worlds.network("mlp", hidden=[8], norm="batch", dtype=torch.float64)
    fed = worlds.federation(module, worlds.images(), FedFM(start_round=0), executor=executor)
    model = worlds.start(module, fed).model.map(share)
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
    assert fed.executor.at_once == 16
    assert "measuring 32 samples at once needs more memory" in caplog.messages[-1]

    def nothing(net, inputs):
        raise torch.OutOfMemoryError(FULL)

    monkeypatch.setattr(BoundNetwork, "__call__", nothing)
    with pytest.raises(UserError, match="one sample alone needs more memory than the GPU has"):
        fed.executor.measure(model, fed.samples, FedFM().statistic)


def test_memory_is_free_when_less_is_tried(monkeypatch):
    """Neither the error, nor captured steps, nor networks keep what did not fit."""
    module = worlds.network("mlp", hidden=[8], norm="batch")
    fed = worlds.federation(module, worlds.images(), Moon(), executor="graph")
    kept: list[weakref.ref[GraphCohort]] = []
    alive: list[bool] = []
    monkeypatch.setattr(graphs, "capture_step", Caught)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: alive.append(kept[-1]() is not None))
    again = GraphCohort.retrain

    def short(cohort, start, objective, plans):
        outcome = again(cohort, start, objective, plans)
        kept.append(weakref.ref(cohort))
        if len(plans) == 4:
            raise torch.OutOfMemoryError(FULL)
        return outcome

    monkeypatch.setattr(GraphCohort, "retrain", short)
    gc.disable()
    try:
        rounds_of(fed, module, rounds=1)
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


def test_one_client_that_does_not_fit_is_an_error_with_what_to_do(room):
    room(0)
    module = worlds.network("mlp", hidden=[8])
    fed = worlds.federation(module, worlds.images(), FedAvg())
    with pytest.raises(UserError) as caught:
        rounds_of(fed, module)
    assert str(caught.value) == (
        "one client alone needs more memory than the GPU has (CUDA out of memory. Tried to "
        "allocate 2.00 GiB.): use a smaller batch_size or model, or precision=bf16"
    )


def test_a_cohorts_models_are_given_up_before_the_next_trains():
    """However small the cohorts, all clients' models would not fit twice."""
    earlier: list[weakref.ref[torch.Tensor]] = []

    def outcome(clients: torch.Tensor) -> TrainingResult:
        assert not any(leaf() is not None for leaf in earlier)
        weights = clients[:, None] * torch.ones(3)
        earlier.append(weakref.ref(weights))
        return TrainingResult(Model({"w": weights}, {}), 10.0 * clients, clients + 1)

    parts = torch.tensor([3, 0, 2, 1]).split(2)
    model, loss, steps = gather_results(map(outcome, parts), parts)
    assert len(earlier) == 2
    assert model.params["w"].tolist() == [[client] * 3 for client in range(4)]
    assert loss.tolist() == [0, 10, 20, 30]
    assert steps.tolist() == [1, 2, 3, 4]
