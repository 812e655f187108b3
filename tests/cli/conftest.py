import re
import sys
from typing import Any

import pytest

from fedfm.cli import main
from tests.cli.tools import Answer, Command

COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture
def command(tmp_path, monkeypatch, capsys) -> Command:
    """`fedfm ARGUMENTS` in this process, in a new folder, with 80 columns and no terminal."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("FEDFM_DATA", raising=False)

    def call(*arguments: Any) -> Answer:
        monkeypatch.setattr(sys, "argv", ["fedfm", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            main()
        said = capsys.readouterr()
        assert isinstance(left.value.code, int)
        return Answer(left.value.code, COLOUR.sub("", said.out), COLOUR.sub("", said.err))

    return call
