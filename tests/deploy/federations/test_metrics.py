"""Metrics of a deployment are those of the simulation, summed in the open or under masks."""

import json

import numpy as np
import pytest

from fedfm.core.errors import UserError
from fedfm.deploy.checks import check_deployable
from fedfm.metrics import METRICS
from tests.deploy.conftest import assert_same

METRICS_ASKED = f"metrics={[*METRICS]}"
SECURE = "deployment.secure=true"


@pytest.mark.parametrize(("kind", "tolerance"), [((), 1e-9), ((SECURE,), 1e-6)])
def test_metrics_are_the_simulation_s_plain_and_secure(federation, kind, tolerance):
    run = federation("fedavg", METRICS_ASKED, *kind)
    result, wanted = run.run(), run.simulated()
    assert_same(run.state, wanted.state, rtol=1e-3, atol=1e-4)
    for ours, theirs in zip(result.rounds, wanted.records, strict=True):
        assert ours.metrics.keys() == theirs.metrics.keys() == {"val", "test"}
        for split, values in theirs.metrics.items():
            exact = {name: value for name, value in values.items() if name != "auc"}
            found = {name: ours.metrics[split][name] for name in exact}
            assert found == pytest.approx(exact, rel=1e-3, abs=max(tolerance, 1e-5))
            assert ours.metrics[split]["auc"] == pytest.approx(values["auc"], abs=0.01)
    confusion = np.array(result.test["confusion"])
    assert confusion.tolist() == wanted.best.metrics["test"]["confusion"]
    assert np.trace(confusion) / confusion.sum() == pytest.approx(result.test_accuracy, abs=1e-6)


def test_a_plain_deployment_knows_the_result_of_each_client(federation):
    run = federation("fedavg", "metrics=log_loss")
    result = run.run()
    results = result.clients
    assert results.split == "test"
    assert len(results.values["accuracy"]) == len(results.values["log_loss"]) == 3
    assert results.worst("log_loss") == max(results.values["log_loss"])
    assert results.worst("accuracy") == min(results.values["accuracy"])
    summary = json.loads((run.folder / "server" / "summary.json").read_text())
    assert summary["clients"]["accuracy"]["worst"] == results.worst("accuracy")
    assert run.progress.best.clients == results


def test_under_secure_sums_only_mean_and_deviation_over_clients_are_known(federation):
    """They are those of the same federation in the open; the rest is refused with the reason."""
    run = federation("fedavg", "metrics=macro_f1", SECURE)
    hidden, plain = run.run().clients, federation("fedavg", "metrics=macro_f1").run().clients
    for name in ("accuracy", "macro_f1"):
        assert hidden.count(name) == plain.count(name) == 3
        assert hidden.mean(name) == pytest.approx(plain.mean(name), abs=1e-6)
        assert hidden.deviation(name) == pytest.approx(plain.deviation(name), abs=1e-4)
        for refused in (hidden.worst, hidden.percentile):
            with pytest.raises(UserError, match=r"^[^\n]*secure sum hides it[^\n]*$"):
                refused(name)
    summary = json.loads((run.folder / "server" / "summary.json").read_text())["clients"]
    assert summary["accuracy"].keys() == {"clients", "mean", "deviation"}
    assert "secure sum" in summary["left_out"]
    assert "values" not in summary


@pytest.mark.parametrize("kind", [(), (SECURE,)])
def test_a_client_of_one_class_is_left_out_of_the_mean(federation, kind):
    run = federation("fedavg", "metrics=auc", "partition.kind=niid3", "partition.missing=3",
                     "training.rounds=1", *kind, clients=4)  # fmt: skip
    result = run.run()
    assert result.validation["auc"] is None
    assert result.test["auc"] > 0
    assert result.clients.count("auc") == 4


def test_a_round_that_no_client_can_judge_is_said(federation, warnings):
    run = federation("fedavg", "select_by=auc", "partition.kind=niid3", "partition.missing=3",
                     "training.rounds=1", clients=4)  # fmt: skip
    assert run.run().best.round == 1
    (line,) = warnings()
    assert "auc" in line


@pytest.mark.parametrize("kind", [(), (SECURE,)])
def test_select_by_chooses_the_round(federation, kind):
    run = federation("fedavg", "select_by=log_loss", "rounds=4", "lr=0.3", *kind)
    result = run.run()
    losses = [record.metrics["val"]["log_loss"] for record in result.rounds]
    assert result.best.round == losses.index(min(losses)) + 1


@pytest.mark.parametrize("kind", [(), (SECURE,)])
def test_without_validation_the_last_rounds_are_reported(federation, kind):
    run = federation("fedavg", "validation=0", "last_rounds=2", *kind)
    result, wanted = run.run(), run.simulated()
    assert_same(run.state, wanted.state, rtol=1e-3, atol=1e-4)
    assert [record.val_accuracy for record in result.rounds] == [None] * 3
    accuracies = [record.test_accuracy for record in wanted.records]
    assert [record.test_accuracy for record in result.rounds] == pytest.approx(accuracies)
    assert result.best.round == 3
    assert result.test_accuracy == pytest.approx(sum(accuracies[-2:]) / 2)


def test_the_server_measures_on_its_own_test_split_exactly(federation):
    run = federation("fedavg", "metrics=auc", "deployment.evaluate=server")
    result, wanted = run.run(), run.simulated()
    assert result.test["auc"] == pytest.approx(wanted.records[-1].metrics["test"]["auc"], abs=1e-6)
    assert result.clients is None


@pytest.mark.parametrize(
    "wrong",
    [
        ("fine_tune=1",),
        ("deployment.evaluate=server", "select_by=macro_f1"),
        ("deployment.evaluate=server", "report=best"),
    ],
)
def test_what_a_deployment_cannot_report_is_refused(federation, wrong):
    with pytest.raises(UserError, match=r"^[^\n]*(fine_tune|select_by)[^\n]*$"):
        check_deployable(federation("fedavg", *wrong).config)
