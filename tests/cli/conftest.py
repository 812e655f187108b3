import re
import sys
from functools import cache
from typing import Any

import pytest
import typer

from fedfm.cli import main
from tests.cli.tools import Answer, Command

COLOUR = re.compile(r"\x1b\[[0-9;]*m")
BUILD = cache(typer.main.get_command)
"""Builds the commands once: that takes longer than many of them run."""


@pytest.fixture(scope="session")
def measured() -> dict[str, Any]:
    """The costs that were measured so far, by method and network."""
    return {}


@pytest.fixture
def measure_once(monkeypatch, measured) -> None:
    """Several tests ask for the costs of one large network."""
    from fedfm.rounds import costs

    real = costs.measure_cost

    def measure_cost(method: Any, model: Any, *sizes: int) -> costs.Cost:
        asked = f"{method} {model} {sizes}"
        if asked not in measured:
            measured[asked] = real(method, model, *sizes)
        return measured[asked]

    monkeypatch.setattr(costs, "measure_cost", measure_cost)


@pytest.fixture
def command(tmp_path, monkeypatch, capsys) -> Command:
    """`fedfm ARGUMENTS` in this process, in a new folder, with 80 columns and no terminal."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("FEDFM_DATA", raising=False)
    monkeypatch.setattr(typer.main, "get_command", BUILD)

    def call(*arguments: Any) -> Answer:
        monkeypatch.setattr(sys, "argv", ["fedfm", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            main()
        said = capsys.readouterr()
        assert isinstance(left.value.code, int)
        return Answer(left.value.code, COLOUR.sub("", said.out), COLOUR.sub("", said.err))

    return call
