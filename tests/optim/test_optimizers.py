"""Local optimizers against torch.optim, step for step in float64, in every executor of a CPU."""

from dataclasses import asdict, replace
from typing import Any

import pytest
import torch
from torch import nn

from fedfm.core import trees
from fedfm.core.errors import UserError
from fedfm.engine import graphs
from fedfm.engine.cohort import Cohort, TrainingJob, TrainingResult
from fedfm.engine.objective import Objective
from fedfm.methods import FedAvg, FedProx, Piece, Scaffold
from fedfm.optim import OPTIMIZERS, Adam, AdamW, Clipping, Optimizer, Schedule, Sgd
from fedfm.rounds.federation import Federation
from fedfm.verify import fixtures
from tests.engine import test_graphs

captured = test_graphs.captured
CASES: dict[str, Optimizer] = {
    "sgd": Sgd(0.05, 0.0, 0.0),
    "sgd, decay": Sgd(0.05, 0.0, 0.01),
    "momentum": Sgd(0.05, 0.9, 0.01),
    "nesterov": Sgd(0.05, 0.9, 0.01, nesterov=True),
    "adam": Adam(0.01),
    "adam, decay": Adam(0.01, (0.8, 0.95), 1e-6, 0.1),
    "adamw": AdamW(0.01, weight_decay=0.1),
    "adamw, betas": AdamW(0.01, (0.8, 0.95), 1e-6, 0.1),
}
TORCH = {Sgd: torch.optim.SGD, Adam: torch.optim.Adam, AdamW: torch.optim.AdamW}
CLIP = Clipping(0.5)


def world(executor: str, *pieces: Piece) -> tuple[nn.Module, Federation]:
    """Four clients of 4, 2, 2 and 4 steps, and the network that they start from.

    It has no batch norm: the gradients of a bias before one are rounding errors, which Adam would
    scale to steps of full length.
    """
    module = fixtures.make_network("tiny cnn", dtype=torch.float64)
    data = fixtures.make_images(shape=fixtures.TINY, dtype=torch.float64)
    return module, fixtures.make_federation(module, data, *pieces or (FedAvg(),), executor=executor)


def train(
    executor: str,
    optimizer: Optimizer,
    clipping: Clipping | None = None,
    factors: tuple[float, ...] = (),
    rounds: int = 1,
) -> TrainingResult:
    """The last of some rounds, all from the first weights."""
    _, fed = world(executor)
    start, nothing = fixtures.start(fed).model.map(trees.share), Objective((), {})
    for round in range(rounds):
        plans = [fed.plan(round, client) for client in range(4)]
        result = fed.executor.train(
            TrainingJob(start, plans, nothing, optimizer, clipping, factors)
        )
    return result


def expect(
    client: int,
    optimizer: Optimizer,
    clipping: Clipping | None = None,
    factors: tuple[float, ...] = (),
    round: int = 0,
) -> dict[str, torch.Tensor]:
    """The weights of a client that torch.optim trains."""
    module, fed = world("loop")
    module.train()
    theirs = TORCH[type(optimizer)](module.parameters(), **asdict(optimizer))
    data = fixtures.make_images(shape=fixtures.TINY, dtype=torch.float64)
    plan = fed.plan(round, client)
    for step, batch in enumerate(torch.from_numpy(plan.indices.numpy()).split(plan.sizes)):
        for group in theirs.param_groups:
            group["lr"] = optimizer.lr * (factors[step] if factors else 1.0)
        theirs.zero_grad()
        chosen = data.train.subset(batch)
        _, logits = module(chosen.inputs)
        nn.functional.cross_entropy(logits, chosen.labels).backward()
        if clipping:
            nn.utils.clip_grad_norm_(module.parameters(), clipping.norm)
        theirs.step()
    return {name: value.detach() for name, value in module.named_parameters()}


def assert_trained(result: TrainingResult, *how: Any, **where: Any) -> None:
    for client in range(4):
        for name, value in expect(client, *how, **where).items():
            ours = result.model.params[name][client]
            torch.testing.assert_close(ours, value, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("executor", ["loop", "stacked", "threads"])
@pytest.mark.parametrize("case", CASES)
def test_every_step_is_that_of_torch(case, executor):
    assert_trained(train(executor, CASES[case]), CASES[case])


@pytest.mark.parametrize("executor", ["loop", "stacked", "threads"])
@pytest.mark.parametrize("case", ["momentum", "nesterov", "adam, decay", "adamw"])
def test_a_rate_that_changes_by_step_with_clipping_is_that_of_torch(case, executor):
    factors = (0.25, 1.0, 0.5, 0.1)
    result = train(executor, CASES[case], CLIP, factors)
    assert_trained(result, CASES[case], CLIP, factors)


@pytest.mark.parametrize("case", CASES)
def test_captured_steps_read_the_rate_and_the_count_of_every_step(captured, case):
    factors = (0.25, 1.0, 0.5, 0.1)
    result = train("graph", CASES[case], CLIP, factors, rounds=2)
    assert captured
    assert_trained(result, CASES[case], CLIP, factors, round=1)


def test_captured_steps_are_used_again_whatever_the_rate(captured):
    _, fed = world("graph")
    start, plans = fixtures.start(fed).model.map(trees.share), [fed.plan(0, k) for k in range(4)]
    for optimizer in (CASES["momentum"], CASES["adamw"]):
        ends, before = [], len(captured)
        for factor in (1.0, 0.5, 0.5, 1.0):
            job = TrainingJob(start, plans, Objective((), {}), optimizer, None, (factor,) * 4)
            ends.append(fed.executor.train(job).model.params["head.weight"])
            if factor == 1.0 and len(ends) == 1:
                assert len(captured) > before
                before = len(captured)
        assert len(captured) == before
        assert torch.equal(ends[0], ends[3])
        assert torch.equal(ends[1], ends[2])
        assert not torch.equal(ends[0], ends[1])


def test_a_constant_rate_stays_a_number(captured):
    """What plain SGD costs and computes on a GPU is what it was without schedules."""
    _, fed = world("graph")
    start, plans = fixtures.start(fed).model.map(trees.share), [fed.plan(0, k) for k in range(4)]
    fed.executor.train(TrainingJob(start, plans, Objective((), {}), CASES["momentum"]))
    assert isinstance(fed.executor, graphs.GraphExecutor)
    clock = fed.executor.cohorts[-1].clock
    assert clock.rate == CASES["momentum"].lr
    assert not isinstance(clock.rate, torch.Tensor)
    assert not clock.moves


def test_moments_start_at_zero_in_every_round(captured):
    """The second round from the same weights on the same batches ends as the first."""
    for executor in ("stacked", "graph"):
        _, fed = world(executor)
        start, plans = (
            fixtures.start(fed).model.map(trees.share),
            [fed.plan(0, k) for k in range(4)],
        )
        for case in ("momentum", "adamw"):
            job = TrainingJob(start, plans, Objective((), {}), CASES[case])
            first, second = (fed.executor.train(job).model.params for _ in range(2))
            for name, value in first.items():
                assert torch.equal(value, second[name]), (executor, case)


def test_moments_that_are_carried_over_would_be_noticed(captured, monkeypatch):
    monkeypatch.setattr(graphs.GraphCohort, "_load", _keep_moments(graphs.GraphCohort._load))
    with pytest.raises(AssertionError):
        test_moments_start_at_zero_in_every_round(captured)


def _keep_moments(load: Any) -> Any:
    def keep(self: Cohort, *arguments: Any) -> None:
        before = trees.tree_map(torch.clone, self.moments)
        load(self, *arguments)
        trees.tree_map(torch.Tensor.copy_, self.moments, before)

    return keep


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_settings_are_the_arguments_of_torch(name):
    optimizer = OPTIMIZERS[name](0.1, *([0.9, 0.0] if name == "sgd" else []))
    weight = nn.Parameter(torch.ones(2))
    group = TORCH[type(optimizer)]([weight], **asdict(optimizer)).param_groups[0]
    assert {key: group[key] for key in asdict(optimizer)} == asdict(optimizer)


def test_only_sgd_shows_the_mean_gradient():
    with pytest.raises(UserError):
        Adam(0.1).accumulation(torch.tensor([3]))


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("pull", [0.0, 0.3])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("factors", [(), (1.0, 0.5, 0.25, 0.1, 0.7)])
def test_accumulation_is_how_far_a_unit_gradient_moves(factors, momentum, pull, nesterov):
    """One parameter at the start x = 0 with the gradient 1 + pull w, by torch's SGD."""
    sgd = Sgd(0.1, momentum, 0.0, nesterov and momentum > 0)
    for steps in (1, 3, 5):
        w = nn.Parameter(torch.zeros(1, dtype=torch.float64))
        theirs = torch.optim.SGD([w], **asdict(sgd))
        for step in range(steps):
            theirs.param_groups[0]["lr"] = sgd.lr * (factors[step] if factors else 1.0)
            w.grad = 1 + pull * w.detach()
            theirs.step()
        (ours,) = sgd.accumulation(torch.tensor([steps]), pull, factors)
        assert float(ours) == pytest.approx(-float(w.detach()) / sgd.lr, rel=1e-12)


# --- Clipping ------------------------------------------------------------------------------------


def test_each_client_is_clipped_by_its_own_norm_over_all_leaves():
    torch.manual_seed(0)
    grads = {"a": torch.randn(3, 4, 5).double(), "b": torch.randn(3).double()}
    grads["a"][2] /= 100
    grads["b"][2] /= 100
    clipped = Clipping(1.0)(grads)
    for client in range(3):
        weights = [nn.Parameter(torch.zeros_like(leaf[client])) for leaf in grads.values()]
        for weight, leaf in zip(weights, grads.values(), strict=True):
            weight.grad = leaf[client].clone()
        nn.utils.clip_grad_norm_(weights, 1.0)
        for weight, leaf in zip(weights, clipped.values(), strict=True):
            torch.testing.assert_close(leaf[client], weight.grad, rtol=1e-12, atol=0)
    assert torch.equal(clipped["a"][2], grads["a"][2])


def test_the_norm_of_low_precision_gradients_is_taken_in_full_precision():
    grads = {"a": torch.full((1, 3000), 1.0).bfloat16()}
    (scale,) = {float(value) for value in Clipping(1.0)(grads)["a"].flatten()}
    assert scale == pytest.approx(3000**-0.5, rel=2**-8)


@pytest.mark.parametrize(
    ("optimizer", "clipping", "folds"),
    [
        (CASES["nesterov"], None, True),
        (CASES["momentum"], Clipping(1.0, first=True), True),
        (CASES["momentum"], CLIP, False),
        (CASES["adam"], None, False),
        (CASES["adamw"], None, False),
    ],
)
def test_corrections_become_a_part_of_the_step_where_that_is_the_same(
    captured, optimizer, clipping, folds
):
    """Captured steps with SCAFFOLD's and FedProx's corrections equal the loop's in any case."""
    pieces = [FedProx(mu=0.5), *([Scaffold()] if isinstance(optimizer, Sgd) else [])]
    ends = []
    for executor in ("graph", "loop"):
        _, fed = world(executor, *pieces)
        training = replace(
            fed.training,
            optimizer=optimizer,
            clipping=clipping,
            schedule=Schedule("exponential", gamma=0.5, rounds=4),
        )
        fed = replace(fed, training=training)
        ends.append(fixtures.play_rounds(fixtures.start(fed), fed, 3))
        if isinstance(fed.executor, graphs.GraphExecutor):
            assert fed.executor.cohorts[-1].folds_corrections is folds
            assert (fed.executor.cohorts[-1].correction is not None) is folds
    assert captured
    test_graphs.assert_same(*ends)
