"""The log: lines for people, or one JSON object per line."""

import json
import logging

import pytest

from fedfm.deploy.events import AnswerLeftOut, emit
from fedfm.deploy.programs.logs import show_log


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
    emit(AnswerLeftOut("it is late", node=3))
    try:
        raise ValueError("no")
    except ValueError:
        logger.exception("failed")


def test_every_line_is_an_object(logger, capsys, tmp_path):
    with show_log(tmp_path / "log", as_json=True):
        write(logger)
    shown = capsys.readouterr().out.splitlines()
    assert shown == (tmp_path / "log").read_text().splitlines()
    lines = [json.loads(line) for line in shown]
    messages = [line["message"] for line in lines]
    assert messages == ["12 clients", "node 3 is left out: it is late", "failed"]
    assert [line["level"] for line in lines] == ["info", "warning", "error"]
    assert "event" not in lines[0]
    assert (lines[1]["event"], lines[1]["facts"]["node"]) == ("left out", 3)
    assert "ValueError: no" in lines[2]["traceback"]


def test_plain_lines_are_the_default(logger, capsys, tmp_path):
    with show_log(tmp_path / "log"):
        write(logger)
    assert capsys.readouterr().out.splitlines()[:2] == [
        "12 clients",
        "node 3 is left out: it is late",
    ]
    assert "WARNING node 3 is left out" in (tmp_path / "log").read_text()
