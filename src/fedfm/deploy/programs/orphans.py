"""Find and end processes that outlive the command that started them."""

import ctypes
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

MARK = "FEDFM_CHILD_OF"
"""The environment variable that marks the processes of a command and their children."""
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
_PARENT_DEATH_SIGNAL = 1


def die_with_parent() -> None:
    """Ask Linux to send this process SIGTERM when its parent ends; call it in a new process."""
    if _LIBC:
        _LIBC.prctl(_PARENT_DEATH_SIGNAL, signal.SIGTERM)


def find_orphans(folder: Path) -> list[int]:
    """Return the running processes with the mark `folder`; works on Linux only.

    Flower starts processes in new sessions, so they are not in one process group.
    """
    mark = f"{MARK}={folder}".encode()
    return [
        int(entry.name) for entry in Path("/proc").glob("[0-9]*") if mark in _environment(entry)
    ]


def _environment(process: Path) -> list[bytes]:
    try:
        return (process / "environ").read_bytes().split(b"\0")
    except OSError:
        return []


def end_orphans(folder: Path, grace: float) -> None:
    """End the processes with the mark `folder` that are still running after `grace` seconds."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if _wait_for_end(folder, grace):
            return
        for orphan in find_orphans(folder):
            with suppress(ProcessLookupError):
                os.kill(orphan, number)
        grace = 2.0
    _wait_for_end(folder, grace)


def _wait_for_end(folder: Path, grace: float) -> bool:
    end = time.monotonic() + grace
    while find_orphans(folder):
        if time.monotonic() >= end:
            return False
        time.sleep(0.1)
    return True
