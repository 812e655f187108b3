"""CCVR: pooled moments, drawn features, the round that concludes a run, what it refuses."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedfm import FedFM, FedFMLite, Partition, Training, UserError, compose, models, simulate
from fedfm.methods import CCVR, Batch, Ditto, FedPer, Piece
from fedfm.methods.ccvr import class_moments, draw_features
from fedfm.rounds.costs import measure_cost
from fedfm.rounds.round import run_round
from fedfm.verify.checks import same_model
from fedfm.verify.fixtures import SmallFederation, play_rounds, start

FEW = Training(clients=3, rounds=3, epochs=1)


def concluded(small: SmallFederation, *pieces: Piece, rounds: int = 3):
    """The states before and after the last round, and its log."""
    fed = replace(small.make_federation(pieces), rounds=rounds)
    before = play_rounds(start(fed), fed, rounds - 1)
    after, log = run_round(before, fed)
    return fed, before, after, log


def test_moments_are_those_of_the_pooled_samples():
    rng = torch.Generator().manual_seed(2)
    features = torch.randn(2, 30, 3, generator=rng, dtype=torch.float64)
    labels = torch.randint(3, (2, 30), generator=rng)
    mask = torch.rand(2, 30, generator=rng) < 0.8
    batch = Batch(features, torch.zeros(2, 30, 4), labels, mask)
    total = {name: leaf.sum(0) for name, leaf in CCVR().statistic(batch).items()}
    mean, covariance = class_moments(total)
    for c in range(3):
        pooled = features[(labels == c) & mask]
        torch.testing.assert_close(mean[c], pooled.mean(0))
        torch.testing.assert_close(covariance[c], pooled.T.cov())
    assert total["count"][3] == 0
    assert not mean[3].any()
    assert not covariance[3].any()


def test_drawn_features_have_these_moments():
    root = torch.tensor([[2.0, 0.0], [1.0, 0.5]], dtype=torch.float64)
    mean, covariance = torch.tensor([[3.0, -1.0]], dtype=torch.float64), (root @ root.T)[None]
    draws = np.random.default_rng(0).standard_normal((1, 20_000, 2))
    drawn = draw_features(mean, covariance, torch.from_numpy(draws))[0]
    torch.testing.assert_close(drawn.mean(0), mean[0], rtol=0, atol=0.05)
    torch.testing.assert_close(drawn.T.cov(), covariance[0], rtol=0, atol=0.1)


@pytest.mark.parametrize("executor", ["loop", "stacked"])
def test_the_last_round_changes_the_head_alone(executor):
    small = SmallFederation("tiny cnn with batch norm", executor=executor)
    fed, before, after, log = concluded(small, CCVR())
    assert log.cohort == fed.everyone == [0, 1, 2, 3]
    assert log.loss is None
    for name, leaf in before.model.params.items():
        assert torch.equal(after.model.params[name], leaf) == (name not in fed.task.head), name
    for name, leaf in before.model.buffers.items():
        assert torch.equal(after.model.buffers[name], leaf)


def test_executors_agree_and_rounds_before_are_fedavgs():
    ends = []
    for executor in ("loop", "stacked"):
        _, before, after, _ = concluded(SmallFederation(executor=executor), CCVR(epochs=3))
        ends.append(after.model)
    same_model(ends[0], ends[1], 1e-9)
    same_model(
        before.model, SmallFederation().play((FedFM(strength=0.0, start_round=0),), 2).model, 1e-9
    )


def test_without_an_epoch_nothing_changes():
    _, before, after, _ = concluded(SmallFederation(), CCVR(epochs=0))
    same_model(before.model, after.model)


def test_a_head_that_forgot_a_class_learns_it_again():
    """Digits by two classes a client: the calibrated head is better than the averaged one."""
    training = Training(clients=10, rounds=6, epochs=2, batch_size=16, lr=0.03, report="last")
    result = simulate(
        "mlp",
        "digits",
        CCVR(samples=100),
        partition=Partition("niid3", missing=8),
        training=training,
        executor="stacked",
    )
    *_, before, after = result.rounds
    assert after.test_accuracy > before.test_accuracy
    assert result.test_accuracy == after.test_accuracy
    assert after.train_loss is None


def test_what_it_sends_is_counted_and_predicted():
    model = models.build("mlp", shape=(1, 8, 8), classes=10, hidden=[6])
    weights = models.count_parameters(model)
    result = simulate(model, "digits", CCVR(), training=FEW, executor="loop")
    last, cost = result.rounds[-1], measure_cost(compose(CCVR()), model, 10, 6)
    assert cost.conclusion == 10 * 6 * 6 + 10 * 6
    assert (last.floats_up, last.floats_down) == (3 * cost.conclusion, 3 * weights)
    assert last.bytes_up == 3 * (4 * cost.conclusion + 8 * 10)
    assert last.handshakes == 1
    assert result.totals.floats_up == cost.whole_process(clients=3, rounds=3)


def test_a_run_that_is_killed_before_the_last_round_ends_the_same(tmp_path):
    whole = simulate("mlp", "digits", CCVR(), training=FEW, executor="loop", out=tmp_path / "a")

    def stop(record):
        if record.round == 2:
            raise KeyboardInterrupt

    how = {"training": FEW, "executor": "loop", "out": tmp_path / "b"}
    with pytest.raises(KeyboardInterrupt):
        simulate("mlp", "digits", CCVR(), watch=stop, **how)
    resumed = simulate("mlp", "digits", CCVR(), resume=True, **how)
    for name, leaf in whole.best.model.params.items():
        assert torch.equal(resumed.best.model.params[name], leaf)


@pytest.mark.parametrize("other", [FedPer(), Ditto(), FedFMLite(models_every=2)])
def test_it_contradicts_models_that_stay_or_travel_rarely(other):
    with pytest.raises(UserError, match=r"ccvr"):
        compose([CCVR(), other])


def test_one_round_is_too_few():
    with pytest.raises(UserError, match=r"ccvr.*rounds must be at least 2"):
        simulate("mlp", "digits", CCVR(), training=replace(FEW, rounds=1))


def test_a_head_that_is_not_linear_is_refused():
    network = models.build("mlp", shape=(1, 8, 8), classes=10, head="simplex")
    with pytest.raises(UserError, match=r"ccvr.*linear"):
        simulate(network, "digits", CCVR(), training=FEW)


@pytest.mark.parametrize("settings", [{"samples": 0}, {"epochs": -1}, {"lr": 0.0}])
def test_settings_outside_their_range_are_refused(settings):
    with pytest.raises(UserError, match=next(iter(settings))):
        CCVR(**settings)
