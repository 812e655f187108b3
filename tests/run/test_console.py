"""What people see on a terminal while a run goes on."""

import io
import logging
import re
import sys

from fedfm.run import console

CONTROL = re.compile(r"\x1b\[[?0-9;]*[a-zA-Z]")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def lines(self) -> list[str]:
        """The lines that were seen, some of them several times."""
        written = CONTROL.sub("", self.getvalue()).split("\n")
        return [line.rpartition("\r")[2].rstrip() for line in written]


def test_log_lines_appear_above_the_bar(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(logging.root, "handlers", [])
    console._standard_error.cache_clear()
    console.log_to_console()
    with console.show_rounds(["fedavg, 4 clients"], rounds=3):
        logging.getLogger("fedfm").warning("on a line of its own")
    console._standard_error.cache_clear()
    lines = terminal.lines()
    assert "WARNING  on a line of its own" in lines
    assert lines[-2].startswith("fedavg, 4 clients")
