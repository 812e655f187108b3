"""The processes of a command: one command per folder, private files, nothing left behind."""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from fedfm.core.errors import UserError, is_disk_full, missing_package_error
from fedfm.core.locks import lock

GRACE = 8.0
"""Seconds within which a process must stop by itself."""
PRIVATE = 0o077
"""The mask of permissions that others do not get."""
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
"""The environment variables that keep Flower from calling its makers."""
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
_PARENT_DEATH_SIGNAL = 1


class FlowerError(RuntimeError):
    """A process or a connection of a federation failed; the message says what to do."""


@dataclass(frozen=True)
class Processes:
    """The processes of one command; `supervise` creates it and ends them."""

    folder: Path
    """The folder of their logs."""
    children: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)
    """The processes by the name of their log."""

    def start(self, command: Sequence[str], log: str) -> "subprocess.Popen[bytes]":
        """Start a program in the background; its output goes to the file `log`."""
        path = self.folder / log
        with path.open("wb") as file:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**os.environ, **QUIET, "PYTHONUNBUFFERED": "1"},
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        self.children[path.stem] = child
        return child

    def check(self) -> None:
        """Raise `FlowerError` if a process has ended."""
        for name, child in self.children.items():
            if child.poll() is not None:
                end = last_lines(self.folder / f"{name}.log")
                raise FlowerError(f"the {name} ended (exit code {child.returncode}):\n{end}")


@contextmanager
def supervise(folder: Path) -> Iterator[Processes]:
    """Manage processes with logs in `folder`; they end with the block.

    On Linux they also end if the command itself is killed with SIGKILL.
    """
    processes = Processes(folder)
    try:
        yield processes
    finally:
        with _handle_signals(signal.SIG_IGN):
            for child in reversed(processes.children.values()):
                _end(child)


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Hold a folder of Flower's files alone, inside the block; nobody else may look into it.

    Ctrl-C and SIGTERM leave the block by SystemExit.
    """
    with make_private_files(), _lock_folder(folder), _handle_signals(_leave):
        yield


@contextmanager
def make_private_files() -> Iterator[None]:
    """Give new folders mode 0700 and new files mode 0600, inside the block."""
    before = os.umask(PRIVATE)
    try:
        yield
    finally:
        os.umask(before)


@contextmanager
def explain_full_disk(remedy: str) -> Iterator[None]:
    """Turn the error of a full disk inside the block into a `FlowerError` that says what to do."""
    try:
        yield
    except OSError as problem:
        if not is_disk_full(problem):
            raise
        where = f" ({problem.filename})" if problem.filename else ""
        raise FlowerError(f"the disk is full{where}: {remedy}") from problem


def die_with_parent() -> None:
    """Ask Linux to send this process SIGTERM when its parent ends; call it in a new process."""
    if _LIBC:
        _LIBC.prctl(_PARENT_DEATH_SIGNAL, signal.SIGTERM)


def require_flower() -> None:
    """Raise a `UserError` if Flower is not installed."""
    if find_spec("flwr") is None:
        raise missing_package_error("Flower is not installed here", "flower")


def last_lines(log: Path, lines: int = 12) -> str:
    """Return the end of a log."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


@contextmanager
def _lock_folder(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o777 & ~PRIVATE)  # an earlier version may have made it
    with ExitStack() as stack:
        file = stack.enter_context((folder / "lock").open("w"))
        try:
            stack.enter_context(lock(file, wait=False))
        except OSError as problem:
            raise UserError(
                f"another command is at work in {folder.parent}: stop it, or choose another --out"
            ) from problem
        yield


@contextmanager
def _handle_signals(handler: Any) -> Iterator[None]:
    """Use `handler` for signals to stop, inside the block."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    print("stopping, which can take some seconds", flush=True)
    raise SystemExit(128 + number)


def _end(child: "subprocess.Popen[bytes]") -> None:
    child.terminate()
    try:
        child.wait(GRACE)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
