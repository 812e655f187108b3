"""Schedules against torch.optim.lr_scheduler, and what is refused."""

import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from fedfm import Training, UserError
from fedfm.optim import Schedule

ROUNDS = 12


def after_warmup(optimizer: Any, warmup: int, then: Any) -> Any:
    rise = lr_scheduler.LinearLR(optimizer, 1 / (warmup + 1), total_iters=warmup)
    return lr_scheduler.SequentialLR(optimizer, [rise, then], milestones=[warmup])


CASES: dict[str, tuple[Schedule, Any]] = {
    "warm-up": (
        Schedule(warmup=3),
        lambda o: lr_scheduler.LinearLR(o, 1 / 4, total_iters=3),
    ),
    "step": (
        Schedule("step", period=4, gamma=0.3),
        lambda o: lr_scheduler.StepLR(o, 4, 0.3),
    ),
    "exponential": (
        Schedule("exponential", gamma=0.8),
        lambda o: lr_scheduler.ExponentialLR(o, 0.8),
    ),
    "cosine": (
        Schedule("cosine", rounds=ROUNDS),
        lambda o: lr_scheduler.CosineAnnealingLR(o, ROUNDS),
    ),
    "cosine to a tenth": (
        Schedule("cosine", rounds=ROUNDS, final=0.1),
        lambda o: lr_scheduler.CosineAnnealingLR(o, ROUNDS, eta_min=0.05),
    ),
    "linear": (
        Schedule("linear", period=6, final=0.2, rounds=ROUNDS),
        lambda o: lr_scheduler.LinearLR(o, 1.0, 0.2, total_iters=6),
    ),
    "warm-up and cosine": (
        Schedule("cosine", warmup=4, rounds=ROUNDS),
        lambda o: after_warmup(o, 4, lr_scheduler.CosineAnnealingLR(o, ROUNDS - 4)),
    ),
    "warm-up and step": (
        Schedule("step", warmup=2, period=3, gamma=0.5),
        lambda o: after_warmup(o, 2, lr_scheduler.StepLR(o, 3, 0.5)),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_every_rate_is_that_of_torch(case):
    schedule, make = CASES[case]
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.5)
    with warnings.catch_warnings(action="ignore"):  # torch's own composition is deprecated
        theirs = make(optimizer)
    for round in range(ROUNDS):
        rate = optimizer.param_groups[0]["lr"]
        assert 0.5 * schedule.factor(round) == pytest.approx(rate, rel=1e-12)
        assert schedule.factors(round, 2) == (schedule.factor(round),) * 2
        optimizer.step()
        with warnings.catch_warnings(action="ignore"):
            theirs.step()


def test_a_cosine_of_a_given_length_stays_at_its_end():
    """Torch's would rise again."""
    schedule = Schedule("cosine", period=5, final=0.1, rounds=ROUNDS)
    assert [schedule.factor(round) for round in (5, 9)] == pytest.approx([0.1, 0.1])


def test_over_steps_every_round_starts_anew():
    schedule = Schedule("exponential", unit="step", gamma=0.5)
    assert schedule.factors(0, 3) == schedule.factors(7, 3) == (1.0, 0.5, 0.25)


def test_a_constant_rate_has_no_factors():
    assert Schedule().factors(5, 3) == ()
    assert Training().schedule.is_constant


@pytest.mark.parametrize(
    ("settings", "depends"),
    [
        ({}, False),
        ({"lr_schedule": "cosine"}, True),
        ({"lr_schedule": "linear", "lr_warmup": 2}, True),
        ({"lr_schedule": "linear", "lr_period": 50, "lr_final": 0.1}, False),
        ({"lr_schedule": "step", "lr_period": 10}, False),
        ({"lr_schedule": "exponential", "lr_gamma": 0.99}, False),
        (
            {"lr_schedule": "cosine", "lr_unit": "step", "lr_period": 10, "lr_final": 0.1},
            False,
        ),
    ],
)
def test_which_schedules_depend_on_the_number_of_rounds(settings, depends):
    assert Training(**settings).schedule.depends_on_total is depends
    some, more = (Training(**settings, rounds=rounds).schedule for rounds in (100, 200))
    assert (some.factors(60, 1) != more.factors(60, 1)) is depends


@pytest.mark.parametrize(
    "settings",
    [
        {"lr_schedule": "sine"},
        {"lr_unit": "epoch"},
        {"lr_warmup": -1},
        {"lr_period": -1},
        {"lr_gamma": 0.0},
        {"lr_gamma": 1.5},
        {"lr_final": 2.0},
        {"lr_schedule": "step"},
        {"lr_schedule": "cosine", "lr_unit": "step"},
        {"lr_schedule": "linear", "lr_unit": "step", "lr_period": 10},
        {"lr_schedule": "cosine", "lr_period": 101},
        {"lr_schedule": "cosine", "lr_period": 50},
        {"lr_schedule": "step", "lr_period": 60, "lr_warmup": 60},
        {"lr_warmup": 100},
        {"lr_schedule": "exponential", "lr_warmup": 200},
    ],
)
def test_a_schedule_that_does_not_fit_the_run_is_refused_in_a_line(settings):
    with pytest.raises(UserError) as caught:
        Training(**settings, rounds=100)
    assert "\n" not in str(caught.value)
