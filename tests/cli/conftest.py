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
