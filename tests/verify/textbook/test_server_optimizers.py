"""Momentum between rounds, by hand and in the limits in which it is something else."""

from dataclasses import replace

import pytest
import torch

from fedfm.verify.checks import Mismatch
from fedfm.verify.textbook.loop import FedAvg, values
from fedfm.verify.textbook.server_optimizers import (
    FedACG,
    FedAdagrad,
    FedAdam,
    FedAvgM,
    FedCM,
    FedYogi,
)
from tests.verify.points import (
    EIGHT,
    FOUR,
    HARD,
    ORIGIN,
    agree,
    build,
    client,
    cohort,
    in_world,
    play,
    where,
)

COHORT = [client("far", EIGHT, samples=1), client("near", ORIGIN, samples=3)]
"""From a = 0, D = 0.25 * 4 = 1; from a = 1, D = 0.25 * 3.5 - 0.75 * 0.5 = 0.5."""


@pytest.mark.parametrize(
    ("kind", "settings", "first", "second"),
    [
        # v: 1, then 0.5 + 0.5; m = 0.5; a = 4 * 0.5 / (1 + 1). v = 0.5 + 0.125, m = 0.25 + 0.25
        (FedAdam, {"beta1": 0.5, "beta2": 0.5, "server_lr": 4.0}, 1, 1 + 2 / (0.625**0.5 + 1)),
        # v = 1 - 0, for sign(1 - 1) = 0; then 1 - 0.5 * 0.25
        (FedYogi, {"beta1": 0.5, "beta2": 0.5, "server_lr": 4.0}, 1, 1 + 2 / (0.875**0.5 + 1)),
        # v = 1 + 1, then 2.25; m = D
        (FedAdagrad, {"server_lr": 1 + 2**0.5}, 1, 1 + (1 + 2**0.5) * 0.5 / (1.5 + 1)),
    ],
)
def test_two_rounds_of_adaptive_servers(kind, settings, first, second):
    method = build(kind, tau=1.0, **settings)
    method.round(COHORT)
    assert where(method) == pytest.approx([first, 0], abs=1e-12)
    method.round(COHORT)
    assert where(method) == pytest.approx([second, 0], abs=1e-12)


def test_the_sign_makes_yogi_forget_slowly_and_grow_slowly():
    method = build(FedYogi, tau=0.5, beta2=0.5)
    assert float(method.second_moment(torch.tensor(1.0), torch.tensor(4.0))) == 3.0
    assert float(method.second_moment(torch.tensor(4.0), torch.tensor(1.0))) == 3.5


def test_without_betas_a_step_of_fedadam_has_the_length_of_its_rate():
    adam = play(in_world(FedAdam, beta1=0.0, beta2=0.0, tau=1e-3, server_lr=0.1), rounds=1)
    start, plain = values(HARD.module), values(play(in_world(FedAvg), rounds=1).model)
    for name, new in values(adam.model).items():
        delta = plain[name] - start[name]
        torch.testing.assert_close(new - start[name], 0.1 * delta / (delta.abs() + 1e-3))


@pytest.mark.parametrize(
    ("kind", "beta2"), [(FedAdam, {"beta2": 1.0}), (FedYogi, {}), (FedAdagrad, {})]
)
def test_with_a_large_tau_and_no_momentum_it_is_fedavg(kind, beta2):
    """The second moment stays the tau^2 at which it starts: x+ = x + lr D / (tau + tau)."""
    method = in_world(kind, beta1=0.0, tau=1e9, server_lr=2e9, **beta2)
    agree(play(method), play(in_world(FedAvg)), 1e-9)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (FedAdam, {}),
        (FedYogi, {}),
        (FedAdagrad, {}),
        (FedACG, {"strength": 0.0}),
        (FedCM, {"alpha": 1.0}),
    ],
)
def test_buffers_are_averaged_as_in_fedavg(kind, options):
    """With these options clients train as in FedAvg in the first round."""
    ours = in_world(kind, **options)
    statistics = dict(play(in_world(FedAvg), 1).model.named_buffers())
    assert statistics
    for name, buffer in play(ours, 1).model.named_buffers():
        torch.testing.assert_close(buffer, statistics[name], rtol=0, atol=0)


def test_two_rounds_of_fedacg():
    """Far: 0 -> 2 -> 2.5, the second step along 2 - 4 + 0.5 * 2. Near: 0. So m = a = 1.25.

    Then w = 1.875; far: -> 2.9375 -> 3.203125; near: -> 0.9375; m = 0.625 + 2.0703125 - 1.875.
    """
    far = client("far", FOUR, steps=2)
    method = build(FedACG, server_momentum=0.5, strength=0.5)
    method.round([far, client("near", ORIGIN)])
    assert where(method) == pytest.approx([1.25, 0], abs=1e-12)
    assert float(method.received_by(far).a.detach()) == pytest.approx(1.875, abs=1e-12)
    method.round([far, client("near", ORIGIN)])
    assert float(method.velocity["a"]) == pytest.approx(0.8203125, abs=1e-12)
    assert where(method) == pytest.approx([2.0703125, 0], abs=1e-12)


def test_fedacg_without_momentum_and_pull_is_fedavg():
    """Clients count alike, so that they need equally many samples."""
    world = replace(HARD, sizes=(8, 8, 8, 8))
    method = in_world(FedACG, world, server_momentum=0.0, strength=0.0)
    agree(play(method, world=world), play(in_world(FedAvg, world), world=world))


def test_the_global_model_of_fedacg_is_the_mean_of_the_clients():
    """X + lambda m + mean(y - (x + lambda m)) is mean(y): momentum is in where clients start."""
    method = in_world(FedACG)
    play(method, 3)
    before = values(method.model)
    clients = cohort(3)
    ends = [method.train_locally(each, method.model) for each in clients]
    method.round(clients)
    for name, new in values(method.model).items():
        mean = sum(values(y)[name] for y in ends) / len(ends)
        torch.testing.assert_close(new, mean, rtol=0, atol=1e-12)
        assert not torch.equal(new, before[name])


def test_fedacg_is_not_fedavgm():
    with pytest.raises(Mismatch):
        agree(play(in_world(FedACG)), play(in_world(FedAvgM, beta=0.85)), 1e-4)


def test_two_rounds_of_fedcm():
    """Far: 0 -> 1 -> 1.75, so V = -0.75 * 1.75 / (0.5 * 2), and a = 0.75 * 1.75.

    Then far steps along 0.5 * (1.3125 - 4) - 0.65625 = -2 and -1.5, near along 0: a + 0.75 * 1.75.
    """
    method = build(FedCM, alpha=0.5)
    for a in (1.3125, 2.625):
        method.round([client("far", FOUR, steps=2, samples=3), client("near", ORIGIN)])
        assert where(method) == pytest.approx([a, 0], abs=1e-12)
        assert float(method.direction["a"]) == pytest.approx(-1.3125, abs=1e-12)


def test_fedcm_divides_by_the_rate_of_the_round_that_made_the_direction():
    """With rates 0.5 and 0.25: V = -2 / 0.5, then the step is 0.25 * (0.5 * -2 + 0.5 * -4)."""
    method = build(FedCM, alpha=1.0, lr_gamma=0.5)
    method.round([client("far", FOUR)])
    assert float(method.direction["a"]) == pytest.approx(-4.0, abs=1e-12)
    method.alpha = 0.5
    method.round([client("far", FOUR)])
    assert where(method) == pytest.approx([2.75, 0], abs=1e-12)


def test_fedcm_divides_by_how_far_momentum_carries_a_unit_gradient():
    """The gradient is always -1, so V is that of its last steps: -(0.5 * 1 + 0.5 * |V|)."""

    def slope(features: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return -features[:, 0].mean()

    method = build(FedCM, alpha=0.5, momentum=0.5)
    method.extra_loss = slope
    for expected in (-0.5, -0.75, -0.875):
        method.round([client("far", ORIGIN, steps=2), client("near", ORIGIN, steps=3)])
        assert float(method.direction["a"]) == pytest.approx(expected, abs=1e-12)


def test_fedcm_with_alpha_1_is_fedavg():
    agree(play(in_world(FedCM, alpha=1.0)), play(in_world(FedAvg)))
    with pytest.raises(Mismatch):
        agree(play(in_world(FedCM, alpha=0.9)), play(in_world(FedAvg)), 1e-4)
