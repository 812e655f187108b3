"""The status of a server: a file that the server keeps up to date and `fedfm status` reads."""

import json
import os
import socket
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedfm.core.errors import UserError, require

STATUS = "status.json"
"""The file's name in a run's folder."""
BEAT = 5.0
"""Seconds after which a running server writes its status even if nothing has happened."""
SILENT = 6 * BEAT
"""Seconds without a new status after which a server counts as not running."""
OVER = ("finished", "stopped")


def describe_process() -> dict[str, Any]:
    """Return what identifies this process."""
    return {"pid": os.getpid(), "host": socket.gethostname()}


def read_status(run: Path) -> dict[str, Any]:
    """Return the status of a server's run, and whether its process is alive."""
    path = run / STATUS
    require(path.is_file(), f"{path} is not there: `fedfm serve` writes it into its --out folder")
    try:
        status = dict(json.loads(path.read_text()))
        return status | {"alive": is_alive(status, datetime.now(UTC))}
    except (ValueError, LookupError, TypeError) as problem:
        raise UserError(
            f"{path} cannot be read ({problem}); a running server replaces it soon"
        ) from problem


def is_alive(status: dict[str, Any], now: datetime) -> bool:
    """Return whether the server that wrote a status is at work.

    Its last sign of life must be recent. On the same machine its process must exist, too.
    """
    silence = (now - datetime.fromisoformat(status["beat"])).total_seconds()
    if status["phase"] in OVER or silence > SILENT:
        return False
    return status["host"] != socket.gethostname() or _exists(int(status["pid"]))


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def is_healthy(status: dict[str, Any], patience: float, now: datetime) -> bool:
    """Return whether a server makes progress: something has happened in the last `patience` s."""
    idle = (now - datetime.fromisoformat(status["changed"])).total_seconds()
    return status["phase"] != "stopped" and idle <= patience
