"""Rounds in TensorBoard's files, and on a real MLflow server with an SQLite store."""

import os
import socket
import subprocess
import sys
import time
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest

from fedfm.core.errors import UserError
from fedfm.core.tables import flatten_keys
from fedfm.run.records import RoundRecord
from fedfm.run.tracking import metrics, tracking

CONFIG = {"seed": 3, "method": {"fedfm": {"strength": 5.0}}}


def record(round: int) -> RoundRecord:
    return RoundRecord(round, 0.5 + round / 100, 0.4, 1.5, 0.25, 10, 20, 40, 80, 2)


def test_configs_are_flattened_with_dots():
    assert flatten_keys(CONFIG) == {"seed": 3, "method.fedfm.strength": 5.0}


def test_a_private_round_has_no_loss_to_track():
    assert "train_loss" not in metrics(replace(record(1), train_loss=None))
    assert metrics(record(1))["train_loss"] == 1.5


def test_unknown_services_are_named(tmp_path):
    with pytest.raises(UserError, match="did you mean 'mlflow'"), tracking(["mlfow"], {}, tmp_path):
        pass


def test_mlflow_wants_to_know_its_server(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(UserError, match="MLFLOW_TRACKING_URI"):
        tracking(["mlflow"], CONFIG, tmp_path).__enter__()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of TensorBoard's own imports
def test_tensorboard_has_every_number_of_every_round(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with tracking(["tensorboard"], CONFIG, tmp_path) as track:
        for round in (1, 2, 3):
            track(record(round))
    found = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert set(found.Tags()["scalars"]) == set(metrics(record(1)))
    values = [(event.step, event.value) for event in found.Scalars("val_accuracy")]
    assert values == [(r, pytest.approx(0.5 + r / 100)) for r in (1, 2, 3)]


@pytest.fixture
def server(tmp_path):
    """An MLflow server on the loopback interface, which ends with the test."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port),
               "--backend-store-uri", f"sqlite:///{tmp_path}/mlflow.db", "--workers", "1",
               "--artifacts-destination", str(tmp_path / "artifacts")]  # fmt: skip
    log = (tmp_path / "server.txt").open("w")
    alone = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}  # no other processes
    process = subprocess.Popen(command, stdout=log, stderr=log, cwd=tmp_path, env=alone)
    try:
        wait_for(f"http://127.0.0.1:{port}/health", process, tmp_path / "server.txt")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)
        log.close()


def wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(600):
        assert process.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.1)
    pytest.fail(f"the server did not start:\n{log.read_text()}")


@pytest.mark.filterwarnings("ignore")  # MLflow's imports warn about their own
def test_mlflow_has_the_config_the_rounds_and_the_files(tmp_path, server, monkeypatch):
    import mlflow

    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    folder = tmp_path / "digits-fedfm-0"
    folder.mkdir()
    (folder / "summary.json").write_text("{}")
    with tracking(["mlflow"], CONFIG, folder) as track:
        for round in (1, 2):
            track(record(round))
    client = mlflow.MlflowClient(server)
    experiment = client.get_experiment_by_name("fedfm")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.run_name == "digits-fedfm-0"
    assert run.data.params == {"seed": "3", "method.fedfm.strength": "5.0"}
    history = client.get_metric_history(run.info.run_id, "val_accuracy")
    assert [(each.step, each.value) for each in history] == [(1, 0.51), (2, 0.52)]
    assert [file.path for file in client.list_artifacts(run.info.run_id)] == ["summary.json"]
