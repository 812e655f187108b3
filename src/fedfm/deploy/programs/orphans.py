"""Processes that outlive the command that started them: found by a mark, and ended."""

import ctypes
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

MARK = "FEDFM_CHILD_OF"
"""The environment variable that marks the processes of a command, and what they start."""
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
_PARENT_DEATH_SIGNAL = 1


def die_with_parent() -> None:
    """In a new process: ask Linux for SIGTERM when the one that started it is no more."""
    if _LIBC:
        _LIBC.prctl(_PARENT_DEATH_SIGNAL, signal.SIGTERM)


def strays(folder: Path) -> list[int]:
    """The running processes with the mark `folder`; only Linux shows them.

    Flower starts processes in sessions of their own, so no process group holds them all.
    """
    mark = f"{MARK}={folder}".encode()
    return [int(entry.name) for entry in Path("/proc").glob("[0-9]*") if mark in _variables(entry)]


def _variables(process: Path) -> list[bytes]:
    try:
        return (process / "environ").read_bytes().split(b"\0")
    except OSError:
        return []


def end_strays(folder: Path, grace: float) -> None:
    """End the processes with the mark `folder` that do not end by themselves in `grace` seconds."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if _gone(folder, grace):
            return
        for stray in strays(folder):
            with suppress(ProcessLookupError):
                os.kill(stray, number)
        grace = 2.0
    _gone(folder, grace)


def _gone(folder: Path, grace: float) -> bool:
    end = time.monotonic() + grace
    while strays(folder):
        if time.monotonic() >= end:
            return False
        time.sleep(0.1)
    return True
