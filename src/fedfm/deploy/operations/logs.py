"""The log of a server or a client: lines for people, or one JSON object per line."""

import json
import logging
from datetime import UTC, datetime
from typing import Any

from fedfm.deploy.events import Event


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


def show_log(as_json: bool = False, names: tuple[str, ...] = ("fedfm",)) -> None:
    """Show these loggers' messages from INFO on, on standard error."""
    handler = logging.StreamHandler()
    if as_json:
        handler.setFormatter(JsonFormatter())
    for name in names:
        logger = logging.getLogger(name)
        logger.setLevel(logging.INFO)
        if not logger.handlers or as_json:
            logger.handlers = [handler]
