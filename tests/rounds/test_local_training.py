"""Rounds with optimizers, schedules and clipping: textbook loops, resuming, what is refused."""

import copy
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import nn

from fedfm import FedAvg, FedFM, RoundRecord, Training, UserError, simulate, simulate_seeds
from fedfm.config import load_config, make_config
from fedfm.core.trees import flatten
from fedfm.engine.networks import copy_model
from fedfm.methods import FedNova, FedProx, Piece, Scaffold
from fedfm.optim import AdamW, Clipping, Schedule, Sgd
from fedfm.rounds.federation import Federation
from fedfm.rounds.round import run_round
from fedfm.verify import fixtures
from fedfm.verify.checks import Mismatch, same_model
from fedfm.verify.compare_textbook import agree
from fedfm.verify.fixtures import SmallFederation
from fedfm.verify.textbook import drift, loop, parts
from fedfm.verify.textbook_federation import cohort_of
from tests.folders import timeless
from tests.pairs import pairwise

FACTORS = (0.2, 1.0, 0.5, 0.1, 0.7, 0.3)
MODULE = fixtures.make_network("tiny mlp", dtype=torch.float64)
DATA = fixtures.make_images(shape=fixtures.TINY, dtype=torch.float64)


def federation(*pieces: Piece, executor: str = "stacked", **training: Any) -> Federation:
    fed = fixtures.make_federation(MODULE, DATA, *pieces, executor=executor, participation=0.75)
    return replace(fed, training=replace(fed.training, **training))


# --- A rate that changes from round to round -----------------------------------------------------


@pytest.mark.parametrize(
    ("piece", "first", "executor"),
    pairwise([FedAvg(), Scaffold(), FedNova()], [False, True], ["loop", "stacked", "threads"]),
)
def test_a_decaying_rate_and_clipping_are_the_textbooks(piece, first, executor):
    decaying = {"lr_gamma": 0.6, "clip_norm": 0.5, "clip_first": first}
    agree(SmallFederation("tiny cnn with batch norm", executor=executor, **decaying), (piece,))


@pytest.mark.parametrize("piece", [FedAvg(), Scaffold(), FedNova()])
def test_a_rate_frozen_at_the_first_round_would_be_noticed(piece):
    whole = Schedule.factors
    with (
        patch.object(Schedule, "factors", lambda self, round, steps: whole(self, 0, steps)),
        pytest.raises(Mismatch),
    ):
        agree(SmallFederation(lr_gamma=0.6), (piece,))


def test_the_order_of_clipping_and_corrections_matters():
    """Else the two federations of the suite would show the same."""
    ends = [
        SmallFederation(clip_norm=0.5, clip_first=first).play((FedProx(mu=5.0),), 2)
        for first in (True, False)
    ]
    one, other = (flatten(end.model._asdict()) for end in ends)
    assert any(not torch.allclose(value, other[name]) for name, value in one.items())


# --- A rate that changes from step to step --------------------------------------------------------


class ByStep(loop.FedAvg):
    """The textbook's local training, with another rate in every step."""

    nesterov = False

    def train_locally(self, client: parts.Client, start: nn.Module) -> nn.Module:
        local = copy.deepcopy(start).train()
        how = Sgd(self.lr, self.momentum, self.weight_decay, self.nesterov)
        sgd = torch.optim.SGD(local.parameters(), **asdict(how))
        for factor, (x, y) in zip(FACTORS, client["batches"], strict=False):
            sgd.param_groups[0]["lr"] = self.lr * factor
            sgd.zero_grad()
            features, logits = local(x)
            loss = nn.functional.cross_entropy(logits, y)
            (loss + self.penalty(local, client, (x, y), features)).backward()
            self.correct_gradients(local, client)
            sgd.step()
        return local


class ScaffoldByStep(ByStep, drift.Scaffold):
    pass


class FedNovaByStep(ByStep, drift.FedNova):
    pass


def unit_gradient_sum(nesterov: bool) -> Any:
    """Return how far torch's SGD moves under a unit gradient and a pull, in units of eta."""

    def move(steps: int, momentum: float, mu: float = 0.0, lr: float = 1.0) -> float:
        w = nn.Parameter(torch.zeros(1, dtype=torch.float64))
        sgd = torch.optim.SGD([w], lr=1.0, momentum=momentum, nesterov=nesterov)
        for factor in FACTORS[:steps]:
            sgd.param_groups[0]["lr"] = lr * factor
            w.grad = 1 + mu * w.detach()
            sgd.step()
        return -float(w.detach()) / lr

    return move


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize(
    ("pieces", "oracle"),
    [
        ((Scaffold(),), ScaffoldByStep),
        ((FedNova(),), FedNovaByStep),
        ((FedNova(), FedProx(mu=0.4)), lambda *how: FedNovaByStep(*how, mu=0.4)),
    ],
)
def test_a_rate_that_changes_by_step_is_the_textbooks(pieces, oracle, nesterov, monkeypatch):
    sgd = Sgd(0.05, 0.9, 1e-3, nesterov)
    monkeypatch.setattr(Schedule, "factors", lambda self, round, steps: FACTORS[:steps])
    monkeypatch.setattr(ByStep, "nesterov", nesterov)
    monkeypatch.setattr(drift, "unit_gradient_sum", unit_gradient_sum(nesterov))
    fed = federation(*pieces, optimizer=sgd, schedule=Schedule(warmup=3, unit="step"))
    theirs = oracle(MODULE, 4, sgd.lr, sgd.momentum, sgd.weight_decay)
    state = fixtures.start(fed)
    for _ in range(4):
        theirs.round(cohort_of(fed, DATA, state.round))
        state, _ = run_round(state, fed)
        same_model(state.model, copy_model(theirs.model), 1e-9, "")


def test_adamw_with_corrections_and_clipping_is_the_loop_s():
    """A pull is added to the gradient, which is clipped; the decay stays apart from both."""
    fed = federation(
        FedProx(mu=0.5),
        optimizer=AdamW(0.01, weight_decay=0.1),
        clipping=Clipping(0.2),
        schedule=Schedule("exponential", gamma=0.5),
    )
    expected = adamw_by_hand(fed)
    for name, value in fixtures.play_rounds(fixtures.start(fed), fed, 2).model.params.items():
        torch.testing.assert_close(value, expected[name], rtol=1e-9, atol=1e-11)


def adamw_by_hand(fed: Federation) -> dict[str, torch.Tensor]:
    """Two rounds of FedProx with torch's AdamW, clipped, at half the rate in the second."""
    model = copy.deepcopy(MODULE)
    for round in range(2):
        clients = cohort_of(fed, DATA, round)
        ends = [train_adamw(model, client["batches"], 0.01 * 0.5**round) for client in clients]
        model = parts.average_models(ends, [client["samples"] for client in clients])
    return {name: value.detach() for name, value in model.named_parameters()}


def train_adamw(start: nn.Module, batches: Sequence[Any], lr: float) -> nn.Module:
    local, received = copy.deepcopy(start), loop.values(start)
    optimizer = torch.optim.AdamW(local.parameters(), lr=lr, weight_decay=0.1)
    for x, y in batches:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(local(x)[1], y)
        (loss + loop.proximal_term(local, received, 0.5)).backward()
        nn.utils.clip_grad_norm_(local.parameters(), 0.2)
        optimizer.step()
    return local


# --- Runs -----------------------------------------------------------------------------------------


ADAMW = {
    **{"clients": 3, "rounds": 4, "epochs": 1, "optimizer": "adamw", "lr": 0.003},
    **{"lr_schedule": "cosine", "lr_warmup": 1, "clip_norm": 1.0},
}


def test_a_resumed_run_equals_an_unbroken_one_bit_for_bit(tmp_path):
    how: dict[str, Any] = {"training": ADAMW, "executor": "stacked"}
    simulate("mlp", "digits", FedFM(start_round=1), **how, out=tmp_path / "whole")

    def stop(record: RoundRecord) -> None:
        if record.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate("mlp", "digits", FedFM(start_round=1), **how, out=tmp_path / "broken", watch=stop)
    simulate("mlp", "digits", FedFM(start_round=1), **how, out=tmp_path / "broken", resume=True)
    assert timeless(tmp_path / "broken") == timeless(tmp_path / "whole")


def test_seeds_of_unequal_steps_train_together_with_a_schedule_over_steps():
    """Their clients' plans have other lengths, and so have the factors."""
    training = {**ADAMW, "lr_schedule": "exponential", "lr_gamma": 0.9, "lr_unit": "step"}
    how: dict[str, Any] = {"training": training, "executor": "stacked"}
    together = simulate_seeds("mlp", "digits", "fedavg", seeds=[0, 1], **how)
    for seed, result in enumerate(together):
        alone = simulate("mlp", "digits", "fedavg", seed=seed, **how)
        assert result.rounds[-1].train_loss == pytest.approx(alone.rounds[-1].train_loss, rel=1e-4)


def test_a_schedule_over_more_steps_than_any_client_takes_is_refused():
    training = {**ADAMW, "lr_schedule": "constant", "lr_unit": "step"}
    with pytest.raises(UserError, match="lr_warmup") as caught:
        simulate("mlp", "digits", "fedavg", training={**training, "lr_warmup": 1000})
    assert "\n" not in str(caught.value)


def test_words_reach_the_optimizer():
    words = ["optimizer=adamw", "betas=[0.8, 0.9]", "eps=1e-6", "lr=0.001", "weight_decay=0.1"]
    training = load_config("digits", ["method=fedavg", *words]).training
    assert training.make_optimizer() == AdamW(0.001, (0.8, 0.9), 1e-6, 0.1)
    plain = Training(nesterov=True, clip_norm=2.0, clip_first=True)
    assert plain.make_optimizer() == Sgd(0.01, 0.9, 1e-5, nesterov=True)
    assert plain.clipping == Clipping(2.0, first=True)
    assert asdict(Training().make_optimizer()) == {
        "lr": 0.01,
        "momentum": 0.9,
        "weight_decay": 1e-5,
        "nesterov": False,
    }
    assert Training().clipping is None


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
@pytest.mark.parametrize("method", ["scaffold", "fednova", ["scaffold", "fedfm"]])
def test_methods_whose_maths_needs_sgd_refuse_another_optimizer(method, optimizer):
    with pytest.raises(UserError, match=optimizer) as caught:
        make_config(method, training={"optimizer": optimizer})
    assert "\n" not in str(caught.value)
    assert make_config(method, training={"optimizer": "sgd"}).training.optimizer == "sgd"


@pytest.mark.parametrize(
    "settings",
    [
        {"optimizer": "adagrad"},
        {"optimizer": "adam", "nesterov": True},
        {"nesterov": True, "momentum": 0.0},
        {"betas": [0.9]},
        {"betas": [0.9, 1.0]},
        {"betas": 0.9},
        {"eps": 0.0},
        {"clip_norm": -1.0},
        {"clip_first": True},
        {"weight_decay": -0.1},
    ],
)
def test_wrong_settings_are_refused_in_a_line(settings):
    for make in (lambda: Training(**settings), lambda: make_config("fedavg", training=settings)):
        with pytest.raises(UserError) as caught:
            make()
        assert "\n" not in str(caught.value)
    assert not Path("config.toml").exists()
