"""`fedfm serve`: a superlink, a proxy in front of it, and one run whose server is this process."""

import json
import logging
import secrets
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from fedfm.config import Config
from fedfm.core.errors import UserError, is_disk_full
from fedfm.deploy.flower.control import Control
from fedfm.deploy.flower.errors import FleetError
from fedfm.deploy.flower.keys import read_public_key
from fedfm.deploy.flower.task import open_server_grid
from fedfm.deploy.keys.folders import ServerKeys
from fedfm.deploy.keys.renewal import Renewed
from fedfm.deploy.programs.addresses import (
    LOOPBACK,
    Address,
    free_address,
    require_free,
    wait_until_listening,
)
from fedfm.deploy.programs.logs import show_log
from fedfm.deploy.programs.processes import (
    FlowerError,
    Processes,
    explain_full_disk,
    lock_folder,
    supervise,
)
from fedfm.deploy.server.signed_grid import ServerGrid
from fedfm.deploy.server_app import FLOWER, run_federation
from fedfm.deploy.signatures import Signer
from fedfm.run.folder import RunFolder

logger = logging.getLogger(__name__)
APP = {
    "serverapp": "fedfm.deploy.server_app:app",
    "clientapp": "fedfm.deploy.client_app:app",
}
"""The two halves of the Flower app, as module:attribute, for nodes of Flower's own."""
FULL = "make room, then continue with --resume; all finished rounds are saved"
LOG, TOKEN, SECRET = "server.log", "control.token", "runtime.secret"


@dataclass(frozen=True)
class Serving:
    """The settings of one run on this machine as the server."""

    config: Config
    out: Path
    address: Address
    """The address for clients."""
    keys: ServerKeys | None = None
    resume: bool = False
    log_json: bool = False

    @property
    def uses_proxy(self) -> bool:
        """Whether a proxy is between the clients and the superlink."""
        return self.keys is not None or not self.address.is_loopback

    @property
    def flower(self) -> Path:
        """The folder of Flower's files."""
        return self.out.resolve() / "flower"


@dataclass(frozen=True)
class Running:
    """A superlink that runs, with its credentials."""

    serving: Serving
    processes: Processes
    inside: Address
    """Where the superlink listens."""
    control: Control
    """Admits clients and lists them, while the federation runs."""
    secret: bytes

    @property
    def ca(self) -> Path | None:
        """The authority of its certificate."""
        return self.serving.keys.ca if self.serving.keys else None


Service = Callable[[Running], AbstractContextManager[object]]
"""Something that works beside the server, from before the run until its end."""


def serve(serving: Serving, services: Sequence[Service] = ()) -> None:
    """Run a federation to its end, with `services` beside it; raise `FlowerError` if it fails."""
    require_free(serving.address)
    with ExitStack() as stack:
        stack.enter_context(explain_full_disk(FULL))
        stack.enter_context(lock_folder(serving.flower))
        RunFolder.open(serving.out, serving.config.as_toml(), serving.resume, FLOWER)
        stack.enter_context(show_log(serving.flower / LOG, serving.log_json))
        running = stack.enter_context(start_superlink(serving))
        for service in services:
            stack.enter_context(service(running))
        run_server(running)


def run_server(running: Running) -> None:
    """Start a run, and be its server."""
    serving, check = running.serving, running.processes.check
    signer = Renewed(serving.keys.files, Signer.load) if serving.keys else None
    app = serving.out.resolve() / "app"
    _write_toml(app / "pyproject.toml", _describe_app(serving.config.as_toml()))
    try:
        run = running.control.start_run(app)
        task = open_server_grid(str(running.inside), running.ca, running.secret, run, check)
        with task as grid:
            run_federation(ServerGrid(grid, run, check, signer), serving.config, serving.out)
    except FleetError as problem:
        check()
        raise FlowerError(f"the superlink refuses its own server: {problem}") from problem
    except UserError as problem:
        raise FlowerError(f"the run failed: {problem}") from problem
    except OSError as problem:
        if is_disk_full(problem):
            raise
        raise FlowerError(f"the run failed: {problem}; continue with --resume") from problem


@contextmanager
def start_superlink(serving: Serving) -> Iterator[Running]:
    """Start a superlink, register the clients' keys, and only then let clients connect."""
    keys, inside = serving.keys, free_address() if serving.uses_proxy else serving.address
    token, secret = _write_credentials(serving.flower)
    command = superlink_command(serving.flower, inside, keys)
    control = Control(str(inside), keys.ca if keys else None, token)
    with control, supervise(serving.flower) as processes:
        superlink = processes.start(command, "superlink.log")
        wait_until_listening(superlink, inside, serving.flower / "superlink.log")
        _register(control, keys)
        if serving.uses_proxy:
            proxy = processes.start(proxy_command(serving, inside), "proxy.log")
            wait_until_listening(proxy, serving.address, serving.flower / "proxy.log")
        logger.info("listening at %s", serving.address)
        yield Running(serving, processes, inside, control, secret)


def superlink_command(folder: Path, address: Address, keys: ServerKeys | None) -> list[str]:
    """Return the command of the superlink; its credentials are in `folder`.

    It has no database, which would halve its speed. A restarted superlink loses nothing of value:
    clients are registered again and reconnect.
    """
    credentials = [str(folder / TOKEN), str(folder / SECRET)]
    module = [sys.executable, "-m", "fedfm.deploy.flower.superlink"]
    return [*module, str(address), *credentials, *_tls(keys)]


def proxy_command(serving: Serving, inside: Address) -> list[str]:
    """Return the command of the proxy between clients and the superlink."""
    module = [sys.executable, "-m", "fedfm.deploy.proxy.proxy"]
    return [*module, str(serving.address), str(inside), str(serving.out), *_tls(serving.keys)]


def _tls(keys: ServerKeys | None) -> list[str]:
    return [*map(str, keys.files)] if keys else []


def _write_credentials(folder: Path) -> tuple[str, bytes]:
    """Draw a token for the Control interface and a secret for the Runtime interface."""
    token, secret = secrets.token_urlsafe(32), secrets.token_bytes(32)
    (folder / TOKEN).write_text(token)
    (folder / SECRET).write_bytes(secret)
    for name in (TOKEN, SECRET):
        (folder / name).chmod(0o600)
    return token, secret


def _register(control: Control, keys: ServerKeys | None) -> None:
    """Register the clients' public keys with the superlink."""
    try:
        for name, key in keys.clients.items() if keys else ():
            control.register(name, read_public_key(key))
    except FleetError as problem:
        assert keys is not None
        raise FlowerError(
            f"{problem}\nIs {keys.certificate.name} also valid for {LOOPBACK}? The server's own "
            "processes connect to it."
        ) from problem


def _describe_app(config: dict[str, Any]) -> dict[str, Any]:
    """Return the project of a Flower app: a config and two names of the installed package."""
    app = {"publisher": "fedfm", "components": APP, "config": {"config": json.dumps(config)}}
    project = {"name": "fedfm-run", "version": "1.0.0", "description": "A run of FedFM"}
    return {"project": project, "tool": {"flwr": {"app": app}}}


def _write_toml(path: Path, table: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(tomli_w.dumps(table), encoding="utf-8")
