"""The log: lines for people, or one JSON object per line."""

import json
import logging

import pytest

from fedfm.deploy.events import LeftOut, tell
from fedfm.deploy.operations.logs import show_log


@pytest.fixture
def logger():
    """FedFM's logger, as it was before."""
    logger = logging.getLogger("fedfm")
    before = logger.handlers, logger.level
    logger.handlers = []
    yield logger
    logger.handlers, logger.level = before


def write(logger: logging.Logger) -> None:
    logger.info("12 clients")
    tell(LeftOut("a\nb", node=3))
    try:
        raise ValueError("no")
    except ValueError:
        logger.exception("failed")


@pytest.mark.usefixtures("logger")
def test_every_line_is_an_object(logger, capsys):
    show_log(as_json=True)
    write(logger)
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["message"] for line in lines] == [
        "12 clients",
        "node 3 is left out: a\nb",
        "failed",
    ]
    assert [line["level"] for line in lines] == ["info", "warning", "error"]
    assert "event" not in lines[0]
    assert (lines[1]["event"], lines[1]["facts"]["node"]) == ("left out", 3)
    assert "ValueError: no" in lines[2]["traceback"]


def test_plain_lines_are_the_default(logger, capsys):
    show_log()
    show_log()
    write(logger)
    assert capsys.readouterr().err.splitlines()[0] == "12 clients"
