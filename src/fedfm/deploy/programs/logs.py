"""The log of a command: on the console, and in a file with times."""

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedfm.deploy.events import Event

CONSOLE, FILE = "%(message)s", "%(asctime)s %(levelname)s %(message)s"


class JsonFormatter(logging.Formatter):
    """Writes a record as a JSON object; an event adds its kind and its facts."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {
            "time": time,
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if isinstance(record.msg, Event):
            line |= {"event": record.msg.kind, "facts": record.msg.facts()}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class LogFile(logging.FileHandler):
    """Writes a log to a file, as long as its disk has room; the console has every line."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Report an error of our own; do without a line that the disk does not take."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)


def add_handler(file: Path | None = None, as_json: bool = False) -> logging.Handler:
    """Let FedFM's log appear on standard output, or in a file; return the new handler."""
    logger = logging.getLogger("fedfm")
    logger.setLevel(logging.INFO)
    handler = LogFile(file) if file else logging.StreamHandler(sys.stdout)
    plain = logging.Formatter(FILE if file else CONSOLE)
    handler.setFormatter(JsonFormatter() if as_json else plain)
    logger.addHandler(handler)
    return handler


@contextmanager
def show_log(file: Path, as_json: bool = False) -> Iterator[None]:
    """Show FedFM's log on standard output and write it to a file, inside the block."""
    handlers = [add_handler(None, as_json), add_handler(file, as_json)]
    try:
        yield
    finally:
        for handler in handlers:
            logging.getLogger("fedfm").removeHandler(handler)
            handler.close()
