"""`fedfm predict`, `fedfm evaluate` and `fedfm export-model`."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from fedfm import data, load
from tests.cli.tools import TINY, sets


@pytest.fixture
def run(command) -> Path:
    assert (
        command("run", "digits", *TINY, *sets("rounds=2", "method=ditto"), "--out", "run").code == 0
    )
    return Path("run")


@pytest.fixture
def table_run(command) -> Path:
    rng = np.random.default_rng(0)
    rows = [
        f"{c + rng.normal():.3f},{rng.normal():.3f},{'yes' if c else 'no'}" for c in [0, 4] * 60
    ]
    Path("patients.csv").write_text("age,pressure,diagnosis\n" + "\n".join(rows) + "\n")
    given = sets("data={name='csv', path='patients.csv', label='diagnosis'}", "rounds=2")
    assert command("run", "digits", *TINY, *given, *sets("method=fedavg"), "--out", "run").code == 0
    return Path("run")


def read(path: str) -> list[dict[str, str]]:
    with Path(path).open(newline="") as file:
        return list(csv.DictReader(file))


def write_images(folder: Path, flat: bool) -> list[int]:
    test = data.load("digits").test
    for i in range(20):
        name = f"{i:02d}.png"
        path = folder / name if flat else folder / str(int(test.labels[i])) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(test.inputs[i, 0].numpy()).save(path)
    return test.labels[:20].tolist()


def test_predict_writes_a_row_for_each_image(command, run):
    write_images(Path("scans"), flat=True)
    answer = command("predict", run, "--data", "scans", "--out", "new/predicted.csv")
    assert (answer.code, answer.err) == (0, "")
    assert "new/predicted.csv" in answer.out
    rows, classifier = read("new/predicted.csv"), load(run)
    assert [row["sample"] for row in rows] == [f"{i:02d}.png" for i in range(20)]
    probabilities = classifier.predict(data.load("digits").test.inputs[:20])
    for row, expected in zip(rows, probabilities, strict=True):
        values = torch.tensor([float(row[f"probability_{c}"]) for c in classifier.classes])
        torch.testing.assert_close(values, expected, rtol=1e-4, atol=1e-6)
        assert row["class"] == classifier.classes[int(expected.argmax())]
    own = command("predict", run, "--data", "scans", "--client", "2", "--out", "own.csv")
    assert own.code == 0
    assert read("own.csv") != rows


def test_evaluate_measures_the_test_data_by_default(command, run):
    answer = command("evaluate", run, "--format", "json")
    recorded = json.loads((run / "summary.json").read_text())
    assert answer.code == 0
    assert json.loads(answer.out)["samples"] == 359
    digits, classifier = data.load("digits"), load(run)
    accuracy = classifier.accuracy(digits.test.inputs, digits.test.labels)
    assert json.loads(answer.out)["accuracy"] == pytest.approx(accuracy)
    assert recorded["rounds"] == 2
    assert f"{accuracy:.2%}" in command("evaluate", run).out


def test_evaluate_measures_class_folders(command, run):
    write_images(Path("scans"), flat=False)
    answer = command("evaluate", run, "--data", "scans", "--client", "1", "--format", "json")
    digits = data.load("digits").test
    expected = load(run, client=1).accuracy(digits.inputs[:20], digits.labels[:20])
    assert json.loads(answer.out) == {"samples": 20, "accuracy": pytest.approx(expected)}


def test_tables_are_predicted_with_and_without_their_classes(command, table_run):
    with_classes = command("predict", table_run, "--data", "patients.csv", "--out", "one.csv")
    assert with_classes.code == 0
    lines = Path("patients.csv").read_text().splitlines()
    Path("new.csv").write_text("\n".join(line.rpartition(",")[0] for line in lines) + "\n")
    assert command("predict", table_run, "--data", "new.csv", "--out", "other.csv").code == 0
    assert read("one.csv") == read("other.csv")
    assert len(read("one.csv")) == 120
    answer = json.loads(
        command("evaluate", table_run, "--data", "patients.csv", "--format", "json").out
    )
    right = [
        row["class"] == line.rpartition(",")[2]
        for row, line in zip(read("one.csv"), lines[1:], strict=True)
    ]
    assert answer == {"samples": 120, "accuracy": pytest.approx(sum(right) / 120)}


def test_export_model_writes_what_the_suffix_says(command, run):
    for name in ("model.pt2", "deep/model.safetensors"):
        answer = command("export-model", run, "--out", name)
        assert (answer.code, answer.err) == (0, "")
        assert name in answer.out
    own = command("export-model", run, "--client", "0", "--out", "own.safetensors")
    assert own.code == 0
    inputs, classifier = data.load("digits").test.inputs[:5], load(run)
    program = torch.export.load("model.pt2").module()
    torch.testing.assert_close(program(inputs), classifier.predict(inputs))
    tensors = load_file("deep/model.safetensors")
    assert tensors.keys() == classifier.state_dict().keys()
    assert torch.equal(tensors["head.weight"], classifier.model.get_parameter("head.weight"))
    assert not torch.equal(load_file("own.safetensors")["head.weight"], tensors["head.weight"])


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["predict", "run", "--data", "absent"], "absent"),
        (["predict", "elsewhere", "--data", "run"], "elsewhere"),
        (["predict", "run", "--data", "run", "--out", "x.txt"], "x.txt"),
        (["predict", "run", "--data", "run"], "no images"),
        (["evaluate", "run", "--data", "flat"], "column of the labels"),
        (["evaluate", "run", "--client", "9"], "0 to 3"),
        (["export-model", "run", "--out", "x.onnx"], "x.onnx"),
    ],
)
def test_mistakes_are_one_line_and_write_nothing(command, run, words, named):
    write_images(Path("flat"), flat=True)
    before = sorted(Path().rglob("*"))
    answer = command(*words)
    assert answer.code == 2
    assert named in answer.err
    assert answer.err.count("\n") == 1
    assert sorted(Path().rglob("*")) == before
