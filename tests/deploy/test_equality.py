"""A deployed federation gives what the simulation gives: every method, bit for bit or nearly so."""

import pytest

from fedfm.methods import PIECES
from tests.deploy.conftest import Fault, assert_same, facts_of

COMPOSED = ("fedprox", "fednova", "moon", "fedavgm", "scaffold", "feddyn")
TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}
"""Of float32 after three rounds: sums of clients are added in another order."""


def assert_equal_runs(federation, accuracies=True, **tolerance):
    """The deployed run has the simulation's model, records and traffic."""
    result, wanted = federation.run(), federation.simulated()
    assert_same(federation.state, wanted.state, **{**TOLERANCE, **tolerance})
    assert len(result.rounds) == len(wanted.records)
    for ours, theirs in zip(result.rounds, wanted.records, strict=True):
        assert ours.traffic == theirs.traffic
        assert ours.failed == theirs.failed == 0
        assert ours.train_loss == pytest.approx(theirs.train_loss, rel=1e-4)
        assert ours.losses == pytest.approx(theirs.losses, rel=1e-4)
        if accuracies:
            assert ours.val_accuracy == pytest.approx(theirs.val_accuracy, abs=1e-9)
            assert ours.test_accuracy == pytest.approx(theirs.test_accuracy, abs=1e-9)
    return result, wanted


@pytest.mark.parametrize("method", PIECES)
def test_every_method_gives_the_simulation_s_result(federation, method):
    result, wanted = assert_equal_runs(federation(method))
    assert result.best.round == wanted.best.round


@pytest.mark.parametrize("other", COMPOSED)
def test_feature_matching_with_another_method(federation, other):
    assert_equal_runs(federation(f"{other},fedfm"))


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fedfm", "fedfm-lite"])
def test_batch_norm_and_its_counters(federation, method):
    run = federation(method, "model.norm=batch")
    assert_equal_runs(run)
    assert run.state.model.buffers


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("fedfm", ["optimizer=adamw", "lr=0.003", "lr_schedule=cosine", "clip_norm=1.0"]),
        ("scaffold", ["nesterov=true", "lr_warmup=2", "clip_norm=0.5", "label_smoothing=0.1"]),
        ("fednova", ["lr_schedule=exponential", "lr_unit=step", "class_weights=balanced"]),
    ],
)
def test_optimizers_schedules_and_losses(federation, method, settings):
    assert_equal_runs(federation(method, *(f"training.{setting}" for setting in settings)))


def test_lite_with_models_every_second_round(federation):
    run = federation("fedfm-lite", "fedfm-lite.models_every=2", "training.rounds=4")
    result, _ = assert_equal_runs(run)
    sent = [record.floats_up for record in result.rounds]
    assert sent[0] < sent[1] > sent[2]


@pytest.mark.parametrize(
    "method", ["fedavg", "scaffold", "feddyn", "moon", "fedfm", "fedfm-lite,fedprox"]
)
def test_two_of_three_clients_in_a_round(federation, method):
    """Rounds are judged by those who are asked in the next one, the last one by everybody."""
    run = federation(method, "training.participation=0.67", "training.rounds=4")
    result, wanted = assert_equal_runs(run, accuracies=False)
    ours, theirs = result.rounds[-1], wanted.records[-1]
    assert ours.val_accuracy == pytest.approx(theirs.val_accuracy, abs=1e-9)
    assert ours.test_accuracy == pytest.approx(theirs.test_accuracy, abs=1e-9)


@pytest.mark.parametrize("method", [["fedfm-lite"], ["fedfm-lite,fedprox", "fedprox.mu=1.0"]])
def test_lite_with_rare_models_and_partial_participation(federation, method):
    every = ("fedfm-lite.models_every=2", "training.participation=0.67", "training.rounds=4")
    assert_equal_runs(federation(*method, *every), accuracies=False)


@pytest.mark.parametrize("method", ["fedavg", "fedfm"])
def test_convolutions_on_digits(federation, method):
    images = ("data={name='digits'}", "model={name='cnn'}", "training.batch_size=64")
    assert_equal_runs(federation(method, *images, "training.rounds=2"))


@pytest.mark.parametrize("method", ["fedavg", "fedfm", "fedfm-lite", "scaffold", "fednova"])
def test_a_secure_sum_gives_the_same_to_its_step(federation, method):
    run = federation(method, "deployment.secure=true")
    result, wanted = run.run(), run.simulated()
    assert_same(run.state, wanted.state, rtol=1e-3, atol=1e-4)
    for ours, theirs in zip(result.rounds, wanted.records, strict=True):
        assert ours.train_loss == pytest.approx(theirs.train_loss, rel=1e-3)
        assert ours.losses == pytest.approx(theirs.losses, rel=1e-3, abs=1e-6)
        assert ours.val_accuracy == pytest.approx(theirs.val_accuracy, abs=1e-6)
        assert ours.test_accuracy == pytest.approx(theirs.test_accuracy, abs=1e-6)
        assert ours.failed == 0


def test_a_secure_sum_counts_in_the_same_unit_where_the_normalisation_is_given(federation):
    """Else a client's summand would be as many times as large as it has samples."""
    units: list[float] = []

    def noted(message, answer):
        units.append(facts_of(message)["unit"])
        return answer()

    given = (f"deployment.mean={[0.0] * 6}", f"deployment.std={[1.0] * 6}")
    for norm in ((), given):
        run = federation("fedavg", "deployment.secure=true", "training.rounds=1", *norm)
        assert run.run(Fault("train", noted)).rounds[0].failed == 0
    assert units[0] == units[1] > 10
