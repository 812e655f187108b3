"""The services beside a running server: audit log, status, keys, certificates, metrics."""

import json
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from fedfm.config.deployment import Deployment
from fedfm.core.errors import missing_package_error
from fedfm.core.files import write_atomically
from fedfm.deploy.events import Event, Stopped, emit, listen
from fedfm.deploy.operations.audit import AUDIT, CHAIN, AuditWriter
from fedfm.deploy.operations.keys import KeyWatcher, Registry
from fedfm.deploy.operations.overview import now, replay
from fedfm.deploy.operations.status import BEAT, STATUS, describe_process, is_healthy
from fedfm.deploy.programs.addresses import Address
from fedfm.deploy.validation import to_one_line

if TYPE_CHECKING:
    from fedfm.deploy.operations.certificates import CertificateWatcher

logger = logging.getLogger(__name__)
POLL = 1.0
"""Seconds between two looks at the keys, and between two writings of the status."""
SLACK = 60.0
"""Seconds that a server may need between two events beyond the waiting times of the config."""


@dataclass(frozen=True)
class Watched:
    """The folder of the server's keys, and where they are registered."""

    folder: Path
    registry: Registry | None = None
    """None: keys that come or go are not registered before the next start."""


class Operations:
    """Listens to a server's events and does what is due from time to time."""

    def __init__(self, run: Path, deployment: Deployment, keys: Watched | None = None) -> None:
        self.run, self.keys = run, keys
        self.patience = max(deployment.wait, deployment.timeout) + SLACK
        self.audit = AuditWriter(run / AUDIT)
        self.overview = replay(self.audit.entries, CHAIN)
        self.overview.changed = now()
        self.watcher = KeyWatcher(keys.folder, keys.registry) if keys else None
        self.lock, self.ticking = threading.RLock(), threading.Lock()
        self.written, self.is_changed = 0.0, True
        self.certificates = _watch_certificates(keys.folder) if keys else None

    def __call__(self, event: Event) -> None:
        """Write an event to the audit log and take it into account."""
        with self.lock:
            event = self.overview.resolve(event)
            time = self.audit.append(event)["time"] if event.audited else now()
            self.overview.update(event, time)
            self.is_changed = True

    def begin(self) -> None:
        """Tell which keys are accepted; refuse certificates that have expired."""
        if self.watcher and self.certificates:
            self.watcher.announce(dict(self.overview.keys))
            self.certificates.require_valid(datetime.now(UTC))
            self.certificates.poll(datetime.now(UTC))

    def tick(self) -> None:
        """Do what is due: keys, certificates, the status."""
        with self.ticking:
            if self.watcher and self.certificates:
                self.watcher.poll()
                self.certificates.poll(datetime.now(UTC))
            if self.is_changed or time.monotonic() - self.written > BEAT:
                self.write_status()

    def status(self) -> dict[str, Any]:
        """Return what status.json and the live page show."""
        with self.lock:
            audit = {"entries": self.audit.count, "hash": self.audit.hash}
            certificates = self.certificates.describe() if self.certificates else []
            process = describe_process() | {"run": str(self.run), "beat": now(), "audit": audit}
            values = self.overview.as_dict() | process | {"certificates": certificates}
        return values | {"healthy": is_healthy(values, self.patience, datetime.now(UTC))}

    def write_status(self) -> None:
        """Replace status.json."""
        self.written, self.is_changed = time.monotonic(), False
        content = json.dumps(self.status(), indent=1) + "\n"
        write_atomically(self.run / STATUS, content.encode())

    def write_last_status(self) -> None:
        """Replace status.json at the end of the server, which has its own reason to end."""
        try:
            self.write_status()
        except OSError as problem:
            logger.warning("the last status was not written: %s", problem)


@contextmanager
def operate(
    run: Path,
    deployment: Deployment,
    keys: Watched | None = None,
    metrics: Address | None = None,
) -> Iterator[Operations]:
    """Run the services beside the server that runs inside the block."""
    operations = Operations(run, deployment, keys)
    with ExitStack() as stack:
        stack.enter_context(listen(operations))
        stack.callback(operations.write_last_status)
        stack.enter_context(_tell_end())
        operations.begin()
        operations.write_status()
        if metrics:
            stack.enter_context(_import_web().serve_web(operations, metrics))
        stack.enter_context(_repeat(operations))
        yield operations


def _watch_certificates(folder: Path) -> "CertificateWatcher":
    from fedfm.deploy.operations.certificates import CertificateWatcher

    return CertificateWatcher(folder)


def _import_web() -> ModuleType:
    try:
        return import_module("fedfm.deploy.operations.web")
    except ImportError as problem:
        raise missing_package_error("--metrics needs prometheus-client", "flower") from problem


@contextmanager
def _tell_end() -> Iterator[None]:
    """Tell that the server stops if the block does not come to its end."""
    try:
        yield
    except BaseException as problem:
        interrupted = isinstance(problem, KeyboardInterrupt | SystemExit | GeneratorExit)
        reason = "it was told to" if interrupted else to_one_line(problem)
        with suppress(OSError):  # a full disk takes no entry; the problem itself says so
            emit(Stopped(reason or type(problem).__name__))
        raise


@contextmanager
def _repeat(operations: Operations) -> Iterator[None]:
    """Call `tick` again and again in a thread of its own."""
    over = threading.Event()

    def work() -> None:
        reported = ""
        while not over.wait(POLL):
            try:
                operations.tick()
            except Exception as problem:
                if str(problem) != reported:
                    trace = None if isinstance(problem, OSError) else problem
                    logger.error(
                        "a service failed, and is tried again: %s", problem, exc_info=trace
                    )
                reported = str(problem)

    thread = threading.Thread(target=work, name="fedfm-operations", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
