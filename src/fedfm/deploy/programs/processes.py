"""Flower's programs as child processes: commands are printed, and no process is left behind."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from fedfm.core.errors import UserError, not_installed
from fedfm.core.locks import lock
from fedfm.deploy.programs.orphans import MARK, die_with_parent, end_orphans

POLL = "0.2"
"""Seconds between two checks of Flower for a process to start (Flower's default is 1)."""
GRACE = 8.0
"""Seconds within which a process must stop by itself."""


class FlowerError(RuntimeError):
    """One of Flower's programs failed; the message says which one and quotes its last output."""


@dataclass(frozen=True)
class Processes:
    """The processes of one command; `supervise` creates it and ends them."""

    folder: Path
    """The folder of their logs."""
    environment: Mapping[str, str]
    children: list["subprocess.Popen[bytes]"] = field(default_factory=list)

    def start(self, command: Sequence[str], log: str) -> "subprocess.Popen[bytes]":
        """Start a program in the background; its output goes to the file `log`."""
        print(shlex.join(command), flush=True)
        path = self.folder / log
        path.unlink(missing_ok=True)  # an orphan of an earlier command may still write to it
        with path.open("wb") as file:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=self.environment,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        self.children.append(child)
        return child

    def run_flwr(self, *words: str) -> dict[str, Any]:
        """Return the JSON that a `flwr` command prints; raise `FlowerError` if it fails."""
        command = ["flwr", *words, "--format", "json"]
        print(shlex.join(command), flush=True)
        done = subprocess.run(command, capture_output=True, text=True, env=self.environment)
        try:
            answer = dict(json.loads(done.stdout))
        except ValueError:
            answer = {"error-message": done.stdout + done.stderr}
        if not answer.get("success"):
            reason = str(answer.get("error-message", answer)).strip()
            raise FlowerError(f"`{shlex.join(command)}` failed: {reason}")
        return answer


@contextmanager
def supervise(folder: Path, variables: Mapping[str, str]) -> Iterator[Processes]:
    """Manage processes with `variables` in their environment; they end with the block.

    Only one command at a time can use `folder`; it first ends the processes that a killed command
    left there. Ctrl-C and SIGTERM leave the block by SystemExit. On Linux the processes also end
    if the command itself is killed with SIGKILL.
    """
    programs = find_flower()
    shown = [f"{key}={shlex.quote(value)}" for key, value in variables.items()]
    print("export", f'PATH={shlex.quote(str(programs))}:"$PATH"', *shown, flush=True)
    path = f"{programs}{os.pathsep}{os.environ.get('PATH', '')}"
    ours = {"PATH": path, MARK: str(folder), "PYTHONUNBUFFERED": "1"}
    with _lock_folder(folder), _handle_signals(_leave):
        end_orphans(folder, grace=0)
        processes = Processes(folder, {**os.environ, **variables, **ours})
        try:
            yield processes
        finally:
            with _handle_signals(signal.SIG_IGN):
                for child in reversed(processes.children):
                    _end(child)
                end_orphans(folder, GRACE)


def find_flower() -> Path:
    """Return the folder of Flower's programs: this Python's, else the first on the PATH.

    Raise a `UserError` if Flower is not installed.
    """
    here = Path(sys.executable).parent
    path = f"{here}{os.pathsep}{os.environ.get('PATH', '')}"
    superlink = shutil.which("flower-superlink", path=path)
    if superlink is None:
        raise not_installed("Flower is not installed here", "flower")
    return Path(superlink).parent


def flower_variables(home: Path, telemetry: bool) -> dict[str, str]:
    """Return the environment variables of all Flower programs.

    Unless `telemetry` is wanted, Flower does not report to its makers.
    """
    variables = {"FLWR_HOME": str(home), "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": POLL}
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    return variables if telemetry else variables | quiet


def last_lines(log: Path, lines: int = 12) -> str:
    """Return the end of a log."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


@contextmanager
def _lock_folder(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
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
