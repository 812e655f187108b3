"""`fedfm verify`."""

import json
import sys

from fedfm.cli.verify import show_progress
from fedfm.methods import FedPer
from fedfm.run import console
from fedfm.verify import CHECKS, MISTAKES, Mistake, suite
from tests.cli.conftest import command

__all__ = ["command"]


def test_a_table_for_people(command):
    answer = command("verify", "fednova")
    assert answer.code == 0
    planted = sum(mistake.method == "fednova" for mistake in MISTAKES)
    assert planted > 1
    assert f"{planted} of {planted} planted mistakes caught" in answer.out
    assert "textbook (plain SGD, momentum," in answer.out
    assert answer.err == ""


def test_json_for_programs(command):
    answer = command("verify", "fedper", "--format", "json")
    report = json.loads(answer.out)
    assert report["passed"] is True
    assert {row["method"] for row in report["rows"]} == {"fedper"}
    assert report["mistakes"][0]["by"]


def test_a_mistake_that_survives_is_exit_code_1(command, monkeypatch):
    few = {name: CHECKS[name] for name in ("textbook: plain SGD", "finite")}
    monkeypatch.setattr(suite, "CHECKS", few)
    monkeypatch.setattr(suite, "MISTAKES", [Mistake("nothing at all", FedPer())])
    answer = command("verify", "fedper")
    assert answer.code == 1
    assert "NOTHING" in answer.out


def test_a_bar_on_a_terminal(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    console._standard_error.cache_clear()
    with show_progress(2) as step:
        step("fedavg")
        step("fedprox")
    assert "1/2" in capsys.readouterr().err


def test_an_unknown_method_is_named(command):
    answer = command("verify", "fedavgg")
    assert answer.code == 2
    assert "fedavg" in answer.err
