"""Too little memory on the GPU: cohorts are split, with the same results."""

import pytest
import torch

from fedfm import FedAvg, FedFM, UserError
from fedfm.algorithms import Scaffold
from fedfm.core.rounds import run_round
from fedfm.core.state import to_tree
from fedfm.core.trees import flatten
from fedfm.engine.executors import StackedExecutor
from tests import worlds

FULL = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 1.00 GiB"


@pytest.fixture
def room(monkeypatch):
    """Memory for so many clients at once; gives the cohorts that were trained."""
    works, trained = StackedExecutor.together, []

    def limit(clients: int) -> list[int]:
        def together(self, start, plans, objective, sgd):
            if len(plans) > clients:
                raise torch.OutOfMemoryError(FULL)
            trained.append(len(plans))
            return works(self, start, plans, objective, sgd)

        monkeypatch.setattr(StackedExecutor, "together", together)
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
