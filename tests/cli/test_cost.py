"""`fedfm cost`: the numbers of the paper's tables, to the last digit."""

import json
from typing import Any

import pytest

from fedfm import methods
from tests.cli.tools import Command

pytestmark = pytest.mark.usefixtures("measure_once")
PAPER = ("fedavg", "fedfm", "fedfm-lite")
"""The methods whose costs with large networks are asked for."""

Rows = dict[str, dict[str, Any]]


def rows(command: Command, *arguments: str) -> Rows:
    answer = command("cost", *arguments, "--format", "json")
    assert answer.code == 0, answer.err
    return {row["method"]: row for row in json.loads(answer.out)}


@pytest.fixture
def methods_of_the_paper(monkeypatch) -> None:
    """Count no others with a large network; `tests/rounds/test_costs.py` counts all methods."""
    kinds = {name: kind for name, kind in methods.PIECES.items() if name in PAPER}
    monkeypatch.setattr(methods, "PIECES", kinds)


SIZES = {
    "resnet18 for 10 classes": ("resnet18", 10, 11_181_642, 11_186_762),
    "resnet50 for 100 classes": ("resnet50", 100, 23_705_252, 23_910_052),
}


@pytest.mark.usefixtures("methods_of_the_paper")
@pytest.mark.parametrize(("model", "classes", "fedavg", "fedfm"), SIZES.values(), ids=SIZES.keys())
def test_memory_floats_and_handshakes_of_a_client_and_round(command, model, classes, fedavg, fedfm):
    found = rows(command, "--model", model, "--classes", str(classes))
    anchors = classes * {"resnet18": 512, "resnet50": 2048}[model]
    expected = {
        "fedavg": (fedavg, fedavg, 1),
        "fedfm": (fedfm, fedfm, 2),
        "fedfm-lite": (fedfm, fedfm, 1),
        "fedfm-lite, a=2": (fedfm, fedavg / 2 + anchors, 1),
        "fedfm-lite, a=5": (fedfm, fedavg / 5 + anchors, 1),
        "fedfm-lite, a=10": (fedfm, fedavg / 10 + anchors, 1),
    }
    for method, (memory, floats, handshakes) in expected.items():
        assert found[method]["memory"] == memory
        assert found[method]["floats_up"] == floats
        assert found[method]["floats_down"] == floats
        assert found[method]["handshakes"] == handshakes


@pytest.mark.usefixtures("methods_of_the_paper")
@pytest.mark.parametrize(
    ("clients", "fedavg", "fedfm"), [(20, 474.1, 478.2), (100, 2370.5, 2391.0)]
)
def test_the_whole_process_in_hundreds_of_millions_of_floats(command, clients, fedavg, fedfm):
    network = ("--model", "resnet50", "--classes", "100")
    found = rows(command, *network, "--clients", str(clients), "--rounds", "100")
    assert found["fedavg"]["whole_process"] == 23_705_252 * clients * 100
    assert found["fedfm"]["whole_process"] == 23_910_052 * clients * 100
    assert found["fedavg"]["whole_process"] / 1e8 == pytest.approx(fedavg, abs=0.05)
    assert found["fedfm"]["whole_process"] / 1e8 == pytest.approx(fedfm, abs=0.05)


def test_a_model_for_token_ids_is_told_their_number(command):
    network = ("--model", "transformer", "--shape", "64", "--classes", "2")
    found = rows(command, *network, "--option", "vocabulary=1000")
    assert found["fedavg"]["floats_up"] == 168_322
    assert found["fedfm"]["floats_up"] == 168_322 + 2 * 64
    answer = command("cost", *network)
    assert answer.code == 2
    assert "vocabulary" in answer.err


def test_small_models_are_shown_in_small_units(command):
    small = ("--model", "mlp", "--shape", "6", "--classes", "3", "--option", "hidden=[32,16]")
    answer = command("cost", *small, "--clients", "5", "--rounds", "20")
    assert "kB up" in answer.out
    assert "1e3 floats" in answer.out
    fedavg = next(line for line in answer.out.splitlines() if " fedavg " in line)
    assert "3.2" in fedavg  # 803 parameters of four bytes
    middling = command("cost", "--model", "cnn", "--classes", "3", "--clients", "3").out
    assert "K=3" in middling
    sending = [line for line in middling.splitlines() if "local" not in line]
    assert not any(line.rstrip(" │").endswith(" 0") for line in sending if "central" not in line)
    assert "80" in fedavg


@pytest.mark.usefixtures("methods_of_the_paper")
def test_the_table_shows_whole_numbers_however_narrow_the_terminal_is(command, monkeypatch):
    for columns in ("80", "20"):
        monkeypatch.setenv("COLUMNS", columns)
        answer = command("cost", "--model", "resnet50", "--classes", "100", "--clients", "20")
        assert answer.code == 0
        lines = answer.out.splitlines()
        table = {line.split("│")[1].strip(): line for line in lines if line.startswith("│")}
        assert table["fedavg"].count("23,705,252") == 3
        assert table["fedfm"].count("23,910,052") == 3
        assert " 474 " in table["fedavg"]
        assert " 478 " in table["fedfm"]
        assert "…" not in answer.out


def test_models_options_count(command):
    small = rows(command, "--model", "mlp", "--shape", "64", "--option", "hidden=[8]")
    assert small["fedavg"]["floats_up"] == 64 * 8 + 8 + 8 * 10 + 10
    assert small["fedfm"]["memory"] == 64 * 8 + 8 + 8 * 10 + 10 + 10 * 8
    normed = (
        "--model",
        "cnn",
        "--shape",
        "1x8x8",
        "--option",
        "norm=group",
        "--option",
        "groups=4",
    )
    assert rows(command, *normed)["fedavg"]["memory"] == (
        (9 * 16 + 2 * 16) + (9 * 16 * 32 + 2 * 32) + (32 * 4 * 64 + 64) + (64 * 10 + 10)
    )


def test_bytes_are_told_too(command):
    small = rows(command, "--model", "mlp", "--shape", "64", "--option", "hidden=[]")
    assert small["fedavg"]["bytes_up"] == 4 * 650
    assert small["fedfm"]["bytes_up"] == 4 * (650 + 640) + 8 * 10


WRONG = {
    "an unknown model": (["--model", "resnet19"], "did you mean 'resnet18'?"),
    "a shape without numbers": (["--shape", "3xbig"], "--shape is like 3x32x32 or 64"),
    "a shape of strange digits": (["--shape", "3²"], "--shape is like 3x32x32 or 64"),
    "a shape for another model": (["--model", "cnn", "--shape", "64"], "takes images"),
    "an unknown option": (["--option", "stemm=cifar"], "did you mean 'stem'?"),
    "an option without a value": (["--option", "stem"], "--option takes name=value"),
    "a wrong value": (["--option", "stem=cifra"], "did you mean 'cifar'?"),
    "a list that is none": (["--model", "mlp", "--option", "hidden=8"], "must be a list"),
}


@pytest.mark.parametrize(("arguments", "words"), WRONG.values(), ids=WRONG.keys())
def test_a_mistake_is_a_line_and_exit_code_2(command, arguments, words):
    answer = command("cost", *arguments)
    assert answer.code == 2
    assert answer.out == ""
    assert words in answer.err
    assert len(answer.err.splitlines()) <= 2
