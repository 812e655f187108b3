"""A node's handle of its worker: starts the process, talks to it, replaces it when it dies."""

import multiprocessing
import signal
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from fedfm.core.errors import UserError
from fedfm.deploy.client.join_request import JoinRequest, Prepared
from fedfm.deploy.payload import Payload
from fedfm.deploy.programs.logs import add_handler
from fedfm.deploy.programs.processes import GRACE, FlowerError, die_with_parent

_SPAWN = multiprocessing.get_context("spawn")
"""A worker is a fresh process: it shares no random state with another one, and may use CUDA."""


class WorkerDied(Exception):
    """The worker ended before it had answered."""


class WorkerProcess:
    """The client's worker; the methods are those of `fedfm.deploy.client.worker.Worker`."""

    def __init__(self) -> None:
        self.files: tuple[Path, Path] | None = None
        self._start()

    def _start(self) -> None:
        self.connection, there = _SPAWN.Pipe()
        self.process = _SPAWN.Process(target=_run, args=(there,), name="fedfm worker")
        self.process.start()
        there.close()
        self.opening = self.files is not None
        """Whether the worker still has to say that it is ready."""
        if self.files is not None:
            self._send("open", *self.files)

    def prepare(self, request: JoinRequest) -> Prepared:
        """Check the config and the data of a client."""
        prepared: Prepared = self._call("prepare", request)
        return prepared

    def open(self, site: Path, log: Path) -> None:
        """Get ready for questions to the client of a site file; a replaced worker does so, too."""
        self._call("open", site, log)
        self.files = site, log

    def answer(self, question: Payload) -> Payload:
        """Answer a question; raise `WorkerDied` if the worker dies of it."""
        if not self.process.is_alive():
            self._replace()
        try:
            answer: Payload = self._call("answer", question)
            return answer
        except WorkerDied:
            self._replace()
            raise

    def close(self) -> None:
        """End the worker."""
        self.connection.close()
        self.process.terminate()
        self.process.join(GRACE)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()

    def _replace(self) -> None:
        """Start another worker, which gets ready while the node goes on."""
        self.close()
        self._start()

    def _call(self, name: str, *arguments: object) -> Any:
        if self.opening:
            self._receive()
            self.opening = False
        self._send(name, *arguments)
        return self._receive()

    def _send(self, name: str, *arguments: object) -> None:
        try:
            self.connection.send((name, arguments))
        except OSError as problem:
            raise self._died() from problem

    def _receive(self) -> Any:
        wait([self.connection, self.process.sentinel])
        try:
            if not self.connection.poll():
                raise self._died()
            worked, result = self.connection.recv()
        except (EOFError, OSError) as problem:
            raise self._died() from problem
        if not worked:
            raise result
        return result

    def _died(self) -> WorkerDied:
        self.process.join(GRACE)
        return WorkerDied(_describe_end(self.process.exitcode))


def _describe_end(code: int | None) -> str:
    if code is not None and code < 0:
        return f"signal {signal.Signals(-code).name}"
    return f"exit code {code}"


def _run(connection: Connection) -> None:
    """Work for the node until it closes the connection."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the node ends its worker
    add_handler()
    from fedfm.deploy.client.worker import Worker

    try:
        worker = Worker()
        while True:
            name, arguments = connection.recv()
            connection.send(_try(getattr(worker, name), arguments))
    except (EOFError, BrokenPipeError):  # the node is gone
        return


def _try(method: Callable[..., object], arguments: tuple[object, ...]) -> tuple[bool, object]:
    try:
        return True, method(*arguments)
    except UserError as problem:
        return False, UserError(str(problem))
    except OSError as problem:
        return False, problem
    except Exception as problem:
        traceback.print_exc()
        return False, FlowerError(f"the worker failed: {problem}")
