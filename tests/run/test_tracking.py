"""Rounds in TensorBoard's files, and in MLflow with an SQLite store."""

from dataclasses import replace

import pytest

from fedfm.core.errors import UserError
from fedfm.core.tables import flatten_keys
from fedfm.run.records import RoundRecord
from fedfm.run.tracking import list_metrics, open_trackers

CONFIG = {"seed": 3, "method": {"fedfm": {"strength": 5.0}}}


def record(round: int) -> RoundRecord:
    return RoundRecord(round, 0.5 + round / 100, 0.4, 1.5, 0.25, 10, 20, 40, 80, 2)


def test_configs_are_flattened_with_dots():
    assert flatten_keys(CONFIG) == {"seed": 3, "method.fedfm.strength": 5.0}


def test_a_private_round_has_no_loss_to_track():
    assert "train_loss" not in list_metrics(replace(record(1), train_loss=None))
    assert list_metrics(record(1))["train_loss"] == 1.5


def test_unknown_services_are_named(tmp_path):
    with (
        pytest.raises(UserError, match="did you mean 'mlflow'"),
        open_trackers(["mlfow"], {}, tmp_path),
    ):
        pass


def test_mlflow_wants_to_know_its_server(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(UserError, match="MLFLOW_TRACKING_URI"):
        open_trackers(["mlflow"], CONFIG, tmp_path).__enter__()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of TensorBoard's own imports
def test_tensorboard_has_every_number_of_every_round(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with open_trackers(["tensorboard"], CONFIG, tmp_path) as track:
        for round in (1, 2, 3):
            track(record(round))
    found = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert set(found.Tags()["scalars"]) == set(list_metrics(record(1)))
    values = [(event.step, event.value) for event in found.Scalars("val_accuracy")]
    assert values == [(r, pytest.approx(0.5 + r / 100)) for r in (1, 2, 3)]


@pytest.mark.filterwarnings("ignore")  # MLflow's imports warn about their own
def test_mlflow_has_the_config_the_rounds_and_the_files(tmp_path, monkeypatch):
    import mlflow

    monkeypatch.chdir(tmp_path)  # artifacts go to ./mlruns
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    folder = tmp_path / "digits-fedfm-0"
    folder.mkdir()
    (folder / "summary.json").write_text("{}")
    with open_trackers(["mlflow"], CONFIG, folder) as track:
        for round in (1, 2):
            track(record(round))
    client = mlflow.MlflowClient()
    experiment = client.get_experiment_by_name("fedfm")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.run_name == "digits-fedfm-0"
    assert run.data.params == {"seed": "3", "method.fedfm.strength": "5.0"}
    history = client.get_metric_history(run.info.run_id, "val_accuracy")
    assert [(each.step, each.value) for each in history] == [(1, 0.51), (2, 0.52)]
    assert [file.path for file in client.list_artifacts(run.info.run_id)] == ["summary.json"]
