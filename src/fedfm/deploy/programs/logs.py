"""The log of a command: on the console, and in a file with times."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CONSOLE, FILE = "%(message)s", "%(asctime)s %(levelname)s %(message)s"


def add_handler(file: Path | None = None) -> logging.Handler:
    """Let FedFM's log appear on standard output, or in a file; return the new handler."""
    logger = logging.getLogger("fedfm")
    logger.setLevel(logging.INFO)
    handler = logging.FileHandler(file) if file else logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter(FILE if file else CONSOLE))
    logger.addHandler(handler)
    return handler


@contextmanager
def show_log(file: Path) -> Iterator[None]:
    """Show FedFM's log on standard output and write it to a file, inside the block."""
    handlers = [add_handler(), add_handler(file)]
    try:
        yield
    finally:
        for handler in handlers:
            logging.getLogger("fedfm").removeHandler(handler)
            handler.close()
