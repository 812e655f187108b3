"""Data that stay on the host: a cohort's samples are staged at fixed addresses on the device."""

import pytest
import torch

from fedfm.core.trees import share
from fedfm.engine.cohort import TrainingJob
from fedfm.engine.device_data import DeviceData, StagedData
from fedfm.engine.objective import Objective
from fedfm.methods import FedAvg, FedFM, Moon
from fedfm.verify import fixtures
from tests.engine.test_graphs import after, assert_same, captured, world

__all__ = ["captured"]


class OnHost(DeviceData):
    """Data that do not fit where batches are wanted."""

    @property
    def resident(self) -> bool:
        return False


def host_feed() -> DeviceData:
    return OnHost(
        **vars(fixtures.make_device_data(fixtures.make_images(), fixtures.make_network()))
    )


def plans(*clients: int):
    fed = fixtures.make_federation(fixtures.make_network(), fixtures.make_images(), FedFM())
    return [fed.plan(0, client) for client in clients]


def test_staged_plans_fetch_the_same_samples():
    source = host_feed()
    stage = StagedData(source)
    asked = plans(0, 2)
    for plan, staged in zip(asked, stage.fill(asked), strict=True):
        assert staged.sizes == plan.sizes
        there, here = stage.data.fetch(staged.indices), source.fetch(plan.indices)
        assert all(torch.equal(one, other) for one, other in zip(there, here, strict=True))


def test_only_the_cohorts_samples_are_staged_and_the_stage_grows_only_when_it_must():
    stage = StagedData(host_feed())
    stage.fill(plans(0, 3))
    large = stage.data
    assert sum(fixtures.SIZES) > len(large.labels) >= fixtures.SIZES[0]
    stage.fill(plans(1))
    assert stage.data is large
    stage.fill(plans(0, 1, 2, 3))
    assert stage.data is not large


@pytest.mark.parametrize("piece", [FedFM(strength=1.0, start_round=1), Moon(mu=0.5)])
def test_graphs_on_staged_data_give_what_the_loop_gives(captured, piece, monkeypatch):
    monkeypatch.setattr(DeviceData, "resident", False)
    graph, loop = (after(4, piece, executor=name, participation=0.5) for name in ("graph", "loop"))
    assert_same(graph, loop)


def test_a_larger_stage_has_other_addresses_and_is_captured_anew(captured, monkeypatch):
    monkeypatch.setattr(DeviceData, "resident", False)
    fed, state = world(FedAvg())
    start, objective = state.model.map(share), Objective(fed.method.pieces, {"fedavg": {}})
    small, large = ([fed.plan(0, client).first(1)] * 2 for client in (2, 0))
    for plans in (small, small, large, small):
        fed.executor.train(TrainingJob(start, plans, objective, fed.training.optimizer))
    keys = [key for key in captured if key[2] == fixtures.SIZES[2]]
    assert len(fed.executor.cohorts) == 1
    assert len(keys) == 2, "once before the stage grew, once after"
