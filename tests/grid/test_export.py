import csv
import importlib
import json
from dataclasses import replace

import pytest

from fedfm.core.errors import UserError
from fedfm.grid.export import collect_round_rows, collect_run_rows, export, to_frame
from fedfm.grid.store import Store
from tests.grid.results import results, store_of


@pytest.fixture
def store(tmp_path):
    first, second, third = results({"FedAvg": [70.0, 71.0], "FedFM": [75.0]})
    config = {"method": {"fedfm": {"start_round": 5}}, "training": {"lr": 1}, "hidden": [8, 4]}
    first, second = (replace(each, config={"training": {"lr": 0.1}}) for each in (first, second))
    third = replace(third, config=config, measures={"nmi": 0.5})
    return store_of(tmp_path / "results", [first, second, third])


def read(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_csv_has_a_row_per_run_and_dotted_names(store, tmp_path):
    (path,) = export(store, tmp_path / "new" / "results.csv")
    rows = read(path)
    assert [row["test_accuracy"] for row in rows] == ["0.7", "0.71", "0.75"]
    assert [row["config.training.lr"] for row in rows] == ["0.1", "0.1", "1"]
    assert [row["config.method.fedfm.start_round"] for row in rows] == ["", "", "5"]
    assert [row["cell.method"] for row in rows] == ["FedAvg", "FedAvg", "FedFM"]
    assert [row["measures.nmi"] for row in rows] == ["", "", "0.5"]
    assert json.loads(rows[2]["config.hidden"]) == [8, 4]
    assert rows[2]["digest"] == store.summaries()[2].digest


def test_rounds_are_a_second_table(store, tmp_path):
    runs, rounds = export(store, tmp_path / "results.csv", rounds=True)
    assert (runs.name, rounds.name) == ("results.csv", "results-rounds.csv")
    rows = read(rounds)
    assert len(rows) == 3 * 4
    assert [row["round"] for row in rows[:4]] == ["1", "2", "3", "4"]
    assert {row["folder"] for row in rows} == {row["folder"] for row in read(runs)}
    assert float(rows[-1]["test_accuracy"]) == 0.75


def test_metrics_of_rounds_are_columns(store, tmp_path):
    path = store.folder / "runs" / "FedAvg-0" / "rounds.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    values = {"metrics": {"val": {"auc": None}, "test": {"auc": 0.75}}}
    path.write_text("".join(json.dumps(line | values) + "\n" for line in lines))
    rows = read(export(store, tmp_path / "results.csv", rounds=True)[1])
    assert [row["test_auc"] for row in rows] == ["0.75"] * 4 + [""] * 8
    assert "metrics" not in rows[0]


def test_a_shared_run_has_its_rounds_once_and_a_lost_one_is_said(store, tmp_path, caplog):
    (first, *_) = store.summaries()
    store.append([replace(first, recipe="other"), replace(first, folder="runs/lost")])
    _, rounds = export(store, tmp_path / "results.csv", rounds=True)
    assert len(read(rounds)) == 3 * 4
    (said,) = caplog.records
    assert "1 runs are left out, since their rounds cannot be read" in said.message


def test_a_line_that_was_cut_off_is_no_round(store, tmp_path):
    path = store.folder / "runs" / "FedAvg-0" / "rounds.jsonl"
    path.write_text(path.read_text() + '{"round": 5, "test_acc')
    _, rounds = export(store, tmp_path / "results.csv", rounds=True)
    assert len(read(rounds)) == 3 * 4


def test_bad_input(store, tmp_path, monkeypatch):
    with pytest.raises(UserError, match=r"\.csv.*\.parquet.*'\.xlsx'"):
        export(store, tmp_path / "results.xlsx")
    with pytest.raises(UserError, match=r"/nothing.*`fedfm table"):
        export(Store(tmp_path / "nothing"), tmp_path / "results.csv")

    def nothing_installed(name):
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", nothing_installed)
    for attempt in (lambda: export(store, tmp_path / "r.parquet"), lambda: to_frame([])):
        with pytest.raises(UserError, match=r"pip install '\.\[parquet\]'"):
            attempt()
    assert not (tmp_path / "r.parquet").exists()


def test_a_frame_keeps_types(store):
    pytest.importorskip("pandas")
    frame = to_frame(collect_run_rows(store))
    assert len(frame) == 3
    assert str(frame["seed"].dtype) == "Int64"
    assert str(frame["test_accuracy"].dtype) == "Float64"
    assert str(frame["config.training.lr"].dtype) == "Float64"
    assert str(frame["config.method.fedfm.start_round"].dtype) == "Int64"
    assert str(frame["quick"].dtype) == "boolean"
    assert frame.groupby("cell.method")["test_accuracy"].mean().to_dict() == pytest.approx(
        {"FedAvg": 0.705, "FedFM": 0.75}
    )
    assert to_frame(collect_round_rows(store))["floats_up"].sum() == 3 * 4 * 1000


def test_values_of_several_types_in_one_column_become_texts(store):
    pytest.importorskip("pandas")
    (first, *_) = store.summaries()
    store.append([replace(first, config={"training": {"lr": "auto"}})])
    assert list(to_frame(collect_run_rows(store))["config.training.lr"]) == [
        "0.1",
        "0.1",
        "1",
        "auto",
    ]


@pytest.mark.parametrize("reader", ["pandas", "polars"])
def test_parquet_reads_back(store, tmp_path, reader):
    for name in {"pandas", "pyarrow", reader}:
        pytest.importorskip(name)
    library = importlib.import_module(reader)
    runs, rounds = map(library.read_parquet, export(store, tmp_path / "r.parquet", rounds=True))
    assert list(runs["test_accuracy"]) == [0.7, 0.71, 0.75]
    assert list(runs["cell.method"]) == ["FedAvg", "FedAvg", "FedFM"]
    assert list(runs["seed"]) == [0, 1, 0]
    assert len(rounds) == 3 * 4
    assert list(rounds["round"][:4]) == [1, 2, 3, 4]
    assert int(runs["config.method.fedfm.start_round"].max()) == 5
