"""Locks between processes: by fcntl, on Windows by msvcrt, elsewhere none."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import IO, Any

FAR = 2**31 - 2
"""The byte that Windows locks: behind the end of a file, so that others can still read it."""


def _import(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        return None


_fcntl, _msvcrt = _import("fcntl"), _import("msvcrt")


@contextmanager
def lock(file: IO[Any], wait: bool) -> Iterator[None]:
    """Hold an open file alone inside the block.

    Where another process holds it, wait for that to end, or without `wait` raise
    `BlockingIOError`.
    """
    if _fcntl:
        _fcntl.flock(file, _fcntl.LOCK_EX | (0 if wait else _fcntl.LOCK_NB))
    elif _msvcrt:
        _lock_far_byte(file.fileno(), wait)
    try:
        yield
    finally:
        if _fcntl:
            _fcntl.flock(file, _fcntl.LOCK_UN)
        elif _msvcrt:
            _call_at_far_byte(file.fileno(), _msvcrt.LK_UNLCK)


def _lock_far_byte(file: int, wait: bool) -> None:
    while True:
        try:
            return _call_at_far_byte(file, _msvcrt.LK_NBLCK)
        except OSError as problem:
            if not wait:
                raise BlockingIOError(*problem.args) from problem
        time.sleep(0.05)


def _call_at_far_byte(file: int, mode: int) -> None:
    position = os.lseek(file, 0, os.SEEK_CUR)
    os.lseek(file, FAR, os.SEEK_SET)
    try:
        _msvcrt.locking(file, mode, 1)
    finally:
        os.lseek(file, position, os.SEEK_SET)
