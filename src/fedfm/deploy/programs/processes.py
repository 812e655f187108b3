"""Flower's programs as processes of ours: printed, started, and none left behind."""

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
from fedfm.deploy.programs.orphans import MARK, die_with_parent, end_strays

POLL = "0.2"
"""Seconds between two looks of Flower for a process to start (its own default is 1)."""
GRACE = 8.0
"""Seconds that a process has to stop by itself."""


class FlowerError(RuntimeError):
    """One of Flower's programs failed; the message says which, and what it said last."""


@dataclass(frozen=True)
class Crew:
    """The processes of one command; `crew` makes it and ends them."""

    folder: Path
    """Their logs."""
    environment: Mapping[str, str]
    children: list["subprocess.Popen[bytes]"] = field(default_factory=list)

    def start(self, command: Sequence[str], log: str) -> "subprocess.Popen[bytes]":
        """Start a program that goes on in the background; what it says goes to the file `log`."""
        print(shlex.join(command), flush=True)
        path = self.folder / log
        path.unlink(missing_ok=True)  # what the last one left running may still write to it
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

    def ask(self, *words: str) -> dict[str, Any]:
        """What a `flwr` command answers in JSON; raise `FlowerError` where it failed."""
        command = ["flwr", *words, "--format", "json"]
        print(shlex.join(command), flush=True)
        answer = subprocess.run(command, capture_output=True, text=True, env=self.environment)
        try:
            found = dict(json.loads(answer.stdout))
        except ValueError:
            found = {"error-message": answer.stdout + answer.stderr}
        if not found.get("success"):
            said = str(found.get("error-message", found)).strip()
            raise FlowerError(f"`{shlex.join(command)}` failed: {said}")
        return found


@contextmanager
def crew(folder: Path, variables: Mapping[str, str]) -> Iterator[Crew]:
    """A crew with `variables` in its environment: its processes end with the block.

    `folder` is its alone: one crew at a time, and first it ends what a killed one left there.
    Ctrl-C and SIGTERM leave the block by SystemExit. A crew whose own command is killed with
    SIGKILL ends by itself (Linux).
    """
    found = programs()
    shown = [f"{key}={shlex.quote(value)}" for key, value in variables.items()]
    print("export", f'PATH={shlex.quote(str(found))}:"$PATH"', *shown, flush=True)
    path = f"{found}{os.pathsep}{os.environ.get('PATH', '')}"
    own = {"PATH": path, MARK: str(folder), "PYTHONUNBUFFERED": "1"}
    with _alone(folder), _signals(_leave):
        end_strays(folder, grace=0)
        made = Crew(folder, {**os.environ, **variables, **own})
        try:
            yield made
        finally:
            with _signals(signal.SIG_IGN):
                for child in reversed(made.children):
                    _end(child)
                end_strays(folder, GRACE)


def programs() -> Path:
    """The folder of Flower's programs: this Python's own, else the first on the PATH."""
    own = Path(sys.executable).parent
    found = shutil.which("flower-superlink", path=f"{own}{os.pathsep}{os.environ.get('PATH', '')}")
    if found is None:
        raise not_installed("Flower is not installed here", "flower")
    return Path(found).parent


def require_flower() -> None:
    """Say so where Flower is not installed, before anything is read, written or awaited."""
    programs()


def quiet(telemetry: bool) -> dict[str, str]:
    """What keeps Flower from reporting to its makers, unless that is wanted."""
    return {} if telemetry else {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}


def variables(home: Path, telemetry: bool) -> dict[str, str]:
    """What all of Flower's programs find in their environment."""
    polling = {"FLWR_HOME": str(home), "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": POLL}
    return polling | quiet(telemetry)


def last_words(log: Path, lines: int = 12) -> str:
    """The end of a log."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        file = stack.enter_context((folder / "lock").open("w"))
        try:
            stack.enter_context(lock(file, wait=False))
        except OSError as problem:
            place = folder.parent
            said = f"another command is at work in {place}: stop it, or choose another --out"
            raise UserError(said) from problem
        yield


@contextmanager
def _signals(handler: Any) -> Iterator[None]:
    """What to do on a signal to stop, inside the block."""
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
