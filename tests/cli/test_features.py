"""`fedfm features`."""

import json
from pathlib import Path

import pytest

from fedfm import data
from fedfm.cli.features import name_panels
from fedfm.config import load_config
from fedfm.features.feature_space import load_features, measure
from tests.cli.tools import TINY, Command, sets
from tests.folders import contents

pytestmark = pytest.mark.usefixtures("hasty_t_sne")
FEW = ("--points", "40")


def run(command: Command, out: str, *changes: str) -> None:
    assert command("run", "digits", *TINY, *sets("rounds=2", *changes), "--out", out).code == 0


def refused(command: Command, *arguments: str) -> str:
    before = contents(Path())
    answer = command("features", *arguments)
    assert answer.code == 2
    assert answer.out == ""
    assert contents(Path()) == before
    return answer.err


def test_runs_are_measured_drawn_and_recorded(command):
    run(command, "one", "method=fedavg", "seed=4")
    run(command, "two", "method=fedfm")
    answer = command("features", "one", "two", *FEW)
    assert answer.code == 0, answer.err
    assert answer.out.endswith("picture in features.png\n")
    assert Path("features.png").read_bytes().startswith(b"\x89PNG")
    for folder, seed in (("one", 4), ("two", 0)):
        kept = json.loads(Path(folder, "features.json").read_text())
        assert kept == measure(*load_features(Path(folder), data.load("digits")), seed)
        line = next(line for line in answer.out.splitlines() if f" {folder} " in line)
        assert f"{kept['nmi']:.4f}" in line
        assert f"{kept['silhouette']:.4f}" in line


def test_the_numbers_for_programs(command):
    run(command, "one", "method=fedavg")
    run(command, "two", "method=fedavg", "seed=1")
    answer = command("features", "one", "two", *FEW, "-o", "new/p.svg", "--format", "json")
    assert answer.code == 0, answer.err
    found = json.loads(answer.out)
    assert found["picture"] == "new/p.svg"
    assert "<svg" in Path("new/p.svg").read_text()
    assert [(row["run"], row["method"], row["seed"]) for row in found["runs"]] == [
        ("one", "fedavg", 0),
        ("two", "fedavg", 1),
    ]
    kept = json.loads(Path("two/features.json").read_text())
    assert {key: found["runs"][1][key] for key in ("nmi", "silhouette")} == kept


def test_a_panel_is_named_by_what_tells_it_from_the_others():
    configs = [
        load_config("digits", [f"method={m}", f"seed={s}"])
        for m, s in (("fedavg", 0), ("fedfm", 0), ("fedavg", 1), ("fedavg", 0))
    ]
    runs = [Path(name) for name in "abcd"]
    assert name_panels(runs[:2], configs[:2]) == ["fedavg", "fedfm"]
    assert name_panels(runs[:3], configs[:3]) == [
        "fedavg, seed 0",
        "fedfm, seed 0",
        "fedavg, seed 1",
    ]
    assert name_panels(runs, configs) == ["a", "b", "c", "d"]
    assert name_panels(runs[:1] * 2, configs[:1] * 2) == ["a", "a"]


def test_what_is_no_finished_run_is_refused(command):
    run(command, "one", "method=fedavg")
    assert "nowhere" in refused(command, "one", "nowhere")
    Path("one/summary.json").unlink()
    assert "the run in one is not finished" in refused(command, "one")


def test_data_that_are_gone_are_named(command):
    Path("table.csv").write_text("height,label\n" + "1.5,a\n2.5,b\n" * 40)
    run(command, "one", "method=fedavg", "data.name=csv", "data.path=table.csv")
    assert command("features", "one", *FEW).code == 0
    Path("table.csv").unlink()
    assert "table.csv as a CSV table" in refused(command, "one")


def test_runs_with_different_classes_are_refused(command):
    Path("table.csv").write_text("height,label\n" + "1.5,a\n2.5,b\n" * 40)
    run(command, "one", "method=fedavg", "data.name=csv", "data.path=table.csv")
    run(command, "two", "method=fedavg")
    assert "one and two have different classes" in refused(command, "one", "two")


@pytest.mark.parametrize("name", ["picture.bmp", "picture"])
def test_a_picture_of_another_kind_is_refused(command, name):
    run(command, "one", "method=fedavg")
    assert "a picture ends in .png or .svg" in refused(command, "one", "-o", name)
