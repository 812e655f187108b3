"""Loop and stacked executors: one result, whatever the network and however unequal the clients."""

import logging
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedfm import models
from fedfm.core.errors import UserError
from fedfm.core.trees import share
from fedfm.data.batches import plan_batches
from fedfm.engine.choice import make_executor
from fedfm.engine.cohort import TrainingJob
from fedfm.engine.executors import LoopExecutor
from fedfm.engine.networks import BoundNetwork, copy_model
from fedfm.engine.objective import Objective
from fedfm.engine.stacked_networks import stack_network
from fedfm.engine.stacking.layers import Unstackable
from fedfm.engine.step_blocks import make_blocks, order_for_packing
from fedfm.methods import FedAvg, FedFM, FedFMLite
from fedfm.rounds.round import run_round
from fedfm.verify import fixtures

NETWORKS: list[tuple[str, tuple[int, ...], dict[str, Any]]] = [
    ("cnn", (1, 8, 8), {}),
    ("cnn", (3, 8, 8), {"norm": "batch"}),
    ("cnn", (1, 8, 8), {"norm": "group"}),
    ("mlp", (12,), {}),
    ("mlp", (12,), {"norm": "batch"}),
    ("resnet18", (3, 32, 32), {"width": 8}),
    ("resnet18", (3, 16, 16), {"width": 8, "stem": "cifar", "norm": "group", "groups": 4}),
    ("resnet18", (3, 16, 16), {"width": 8, "stem": "cifar", "projection": 6}),
    ("resnet50", (3, 16, 16), {"width": 4}),
    ("resnet50", (3, 32, 32), {"width": 8, "stem": "imagenet", "norm": "group", "groups": 4}),
]
SMALL = [case for case in NETWORKS if case[0] in ("cnn", "mlp")]
CASES = [(False, *case) for case in NETWORKS] + [(True, *case) for case in SMALL]
IDS = [f"{name} {[*options.values()]} {keep_last}" for keep_last, name, _, options in CASES]


def after_rounds(executor, module, data, piece, rounds=2, **settings):
    fed = fixtures.make_federation(module, data, piece, executor=executor, **settings)
    state = fixtures.start(fed)
    for _ in range(rounds):
        state, log = run_round(state, fed)
    return state, log


def assert_same(one, other, tolerance):
    trees = zip((*one.model, one.server), (*other.model, other.server), strict=True)
    for ours, theirs in trees:
        for name, value in ours.items():
            if isinstance(value, dict):
                assert_leaves(value, theirs[name], tolerance)
            else:
                torch.testing.assert_close(value, theirs[name], rtol=tolerance, atol=tolerance)


def assert_leaves(ours, theirs, tolerance):
    for name, value in ours.items():
        torch.testing.assert_close(value, theirs[name], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("keep_last", "name", "shape", "options"), CASES, ids=IDS)
def test_loop_and_stacked_agree(keep_last, name, shape, options):
    module = fixtures.make_network(name, dtype=torch.float64, shape=shape, **options)
    data = fixtures.make_images(shape=shape, dtype=torch.float64)
    settings = {"keep_last": keep_last, "epochs": 1}
    piece = FedFM(strength=1.0, start_round=0)
    loop, stacked = (
        after_rounds(executor, module, data, piece, **settings) for executor in ("loop", "stacked")
    )
    # fifty layers of batch norm over a handful of samples let even float64's rounding grow: on one
    # processor to 1e-9, on another to 1.4e-8
    assert_same(loop[0], stacked[0], 5e-8 if name == "resnet50" else 1e-9)
    torch.testing.assert_close(loop[1].loss, stacked[1].loss)
    assert loop[1].traffic == stacked[1].traffic


def test_loop_and_stacked_agree_in_float32_to_its_precision():
    module, data = fixtures.make_network(norm="batch"), fixtures.make_images()
    piece = FedFMLite(strength=1.0, start_round=0, models_every=2)
    loop, stacked = (after_rounds(e, module, data, piece, 4)[0] for e in ("loop", "stacked"))
    assert_same(loop, stacked, 5e-4)


def test_a_cohort_is_its_clients_one_by_one():
    """Property 2: training clients 0..3 together or in two halves gives each the same model."""
    module, data = (
        fixtures.make_network(norm="batch", dtype=torch.float64),
        fixtures.make_images(dtype=torch.float64),
    )
    fed = fixtures.make_federation(module, data, FedAvg())
    start = fixtures.start(fed).model
    plans = [fed.plan(0, k) for k in range(4)]
    nothing = Objective(fed.method.pieces, {"fedavg": {}})
    job = TrainingJob(start.map(share), plans, nothing, fed.training.optimizer)
    together = fed.executor.train(job)
    for half in (slice(0, 2), slice(2, 4)):
        part = fed.executor.train(job.rows(half))
        for name, value in part.model.params.items():
            torch.testing.assert_close(value, together.model.params[name][half])
        for name, value in part.model.buffers.items():
            torch.testing.assert_close(value, together.model.buffers[name][half])
        assert torch.equal(part.steps, together.steps[half])


def test_every_step_of_every_plan_is_taken_once_and_in_order():
    sizes, batch = (23, 10, 5, 16, 16), 8
    plans = [
        plan_batches(torch.arange(n).numpy(), epochs=2, batch_size=batch, keep_last=True,
             augmentation=None, key=(0, 0, k))
        for k, n in enumerate(sizes)
    ]  # fmt: skip
    taken: list[list[Tensor]] = [[] for _ in plans]
    for block in make_blocks(plans):
        rows = range(block.rows.start, block.rows.stop)
        for row, indices in zip(rows, block.indices, strict=True):
            taken[row].extend(indices)
    for own, expected in zip(taken, plans, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(own, expected.batches, strict=True))


def test_packing_puts_long_clients_first_and_short_batches_last():
    sizes = (5, 40, 16, 24)
    plans = [
        plan_batches(torch.arange(n).numpy(), epochs=1, batch_size=8, keep_last=False,
                     augmentation=None, key=(0, 0, k))
        for k, n in enumerate(sizes)
    ]  # fmt: skip
    assert order_for_packing(plans) == [1, 3, 2, 0]
    made = list(make_blocks([plans[i] for i in order_for_packing(plans)]))
    assert [(block.rows, block.steps) for block in made] == [
        (slice(0, 3), 1), (slice(3, 4), 1), (slice(0, 3), 1), (slice(0, 2), 1), (slice(0, 1), 2),
    ]  # fmt: skip


class Custom(nn.Module):
    """A user's network with a forward pass of its own."""

    def __init__(self, layer: nn.Module, trick=None) -> None:
        super().__init__()
        self.layer, self.trick = layer, trick
        self.head = nn.Linear(6, fixtures.CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(torch.relu(x))
        return self.head(self.trick(x) if self.trick else x)


def adapted(layer: nn.Module, trick=None) -> nn.Module:
    torch.manual_seed(0)
    return models.WithFeatures(Custom(layer, trick), head="head")


def test_a_users_network_is_stacked_where_it_can_be():
    module, data = adapted(nn.Linear(12, 6)), fixtures.make_images(shape=(12,))
    loop, stacked = (after_rounds(e, module, data, FedAvg())[0] for e in ("loop", "stacked"))
    assert_same(loop, stacked, 1e-5)


def test_what_cannot_be_stacked_runs_in_the_loop_and_says_so_once(caplog):
    module = adapted(nn.Linear(12, 6), lambda x: x * float(x.detach().std()))
    data = fixtures.make_images(shape=(12,))
    with pytest.raises(Unstackable, match="layer 'module'"):
        stack_network(module, torch.zeros(2, 3, 12))
    with caplog.at_level(logging.WARNING):
        chosen = make_executor("stacked", module, fixtures.make_device_data(data, module))
    assert type(chosen) is LoopExecutor
    assert len(caplog.records) == 1
    assert "layer 'module'" in caplog.text


def test_dropout_is_keyed_by_seed_round_and_client():
    module = adapted(nn.Sequential(nn.Linear(12, 6), nn.Dropout(0.5)))
    data = fixtures.make_images(shape=(12,))
    for name in ("loop", "stacked"):
        torch.manual_seed(1)
        first, _ = after_rounds(name, module, data, FedAvg())
        torch.manual_seed(2)
        again, _ = after_rounds(name, module, data, FedAvg())
        assert all(torch.equal(v, again.model.params[n]) for n, v in first.model.params.items())


def test_shared_and_frozen_parameters_are_bound_as_they_are():
    torch.manual_seed(0)
    first, second = nn.Linear(12, 12), nn.Linear(12, 12)
    second.weight = first.weight
    first.bias.requires_grad_(False)
    body = nn.Sequential(first, nn.ReLU(), second)
    module = models.BodyAndHead(body, nn.Linear(12, fixtures.CLASSES))
    data = fixtures.make_images(shape=(12,))
    frozen = first.bias.detach().clone()
    for name in ("loop", "stacked"):
        state, _ = after_rounds(name, module, data, FedAvg())
        assert "body.0.bias" in state.model.buffers
        assert torch.allclose(state.model.buffers["body.0.bias"], frozen, atol=1e-7)
        assert "body.2.weight" not in state.model.params
        assert not torch.equal(state.model.params["body.0.weight"], first.weight)


def test_unknown_executors_are_named():
    module = fixtures.make_network()
    with pytest.raises(UserError, match="'stacked'"):
        make_executor("staked", module, fixtures.make_device_data(fixtures.make_images(), module))


def test_a_batch_of_one_under_batch_norm_is_explained():
    module, data = fixtures.make_network("mlp", norm="batch"), fixtures.make_images()
    fed = fixtures.make_federation(module, data, FedAvg(), batch_size=1)
    with pytest.raises(UserError, match=r"batch.*\b1\b"):
        run_round(fixtures.start(fed), fed)


def test_binding_works_on_the_tensors_themselves():
    module = fixtures.make_network(norm="batch")
    net = BoundNetwork(module)
    model = copy_model(module).map(share)
    net.bind(model)
    net.module.train()
    net(torch.randn(1, 6, 1, 8, 8))
    name = next(n for n in model.buffers if n.endswith("num_batches_tracked"))
    assert model.buffers[name].tolist() == [1]
