"""The server's side of a deployment: a superlink, a gate in front of it, and one run."""

import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedfm.deploy.programs.addresses import (
    LOOPBACK,
    Address,
    free_address,
    require_free,
    wait_until_listening,
)
from fedfm.deploy.programs.app_folder import (
    CONNECTION,
    FEDFM,
    Components,
    write_app,
    write_connection,
)
from fedfm.deploy.programs.keys import ServerKeys
from fedfm.deploy.programs.log import show
from fedfm.deploy.programs.processes import Crew, FlowerError, crew, last_words, variables
from fedfm.run.folder import RunFolder

FINISHED = "finished:completed"
FAILED = "ServerApp raised an exception"
"""What Flower writes before a traceback; why the run failed is said once it is over."""
REASON = "ServerApp failed with exception: "
"""How Flower begins to say why."""
Needed = dict[str, "subprocess.Popen[bytes]"]
"""The processes without which a run cannot go on, by name."""


@dataclass(frozen=True)
class Serving:
    """One run on this machine as the server."""

    config: dict[str, Any]
    """Resolved, as plain values."""
    out: Path
    address: Address
    """Where clients come."""
    keys: ServerKeys | None = None
    resume: bool = False
    telemetry: bool = False
    components: Components = FEDFM

    @property
    def guarded(self) -> bool:
        """Whether a gate stands between the clients and the superlink."""
        return self.keys is not None or not self.address.is_loopback

    @property
    def flower(self) -> Path:
        """Flower's files."""
        return self.out.resolve() / "flower"

    @property
    def variables(self) -> dict[str, str]:
        """What the processes find in their environment; the ServerApp inherits it."""
        return variables(self.flower, self.telemetry) | {
            "FEDFM_OUT": str(self.out.resolve()),
            "FEDFM_RESUME": "1",  # `serve` has seen to it that the folder holds this run
        }


def superlink_command(address: Address, keys: ServerKeys | None) -> list[str]:
    """`flower-superlink`, all in memory: with a database a 45 MB model takes twice as long.

    What it forgets when it is restarted is made good: clients are registered anew, and come back.
    """
    return [
        "flower-superlink",
        *("--host", address.host, "--port", str(address.port)),
        "--disable-runtime-dependency-installation",
        *(_tls(keys) if keys else ["--insecure"]),
    ]


def _tls(keys: ServerKeys) -> list[str]:
    return [
        *("--ssl-ca-certfile", str(keys.ca)),
        *("--ssl-certfile", str(keys.certificate)),
        *("--ssl-keyfile", str(keys.key)),
        "--enable-supernode-auth",
    ]


def gate_command(outside: Address, inside: Address, keys: ServerKeys | None) -> list[str]:
    """The gate between clients and the superlink."""
    files = [str(keys.ca), str(keys.certificate), str(keys.key)] if keys else []
    return [sys.executable, "-m", "fedfm.deploy.programs.proxy", str(outside), str(inside), *files]


def serve(serving: Serving) -> None:
    """Run a superlink and one run on it until that is over; raise `FlowerError` if it failed."""
    require_free(serving.address)
    RunFolder.open(serving.out, serving.config, serving.resume)
    app = serving.out.resolve() / "app"
    write_app(app, serving.config, serving.components)
    with crew(serving.flower, serving.variables) as workers:
        needed = _open(workers, serving)
        run = workers.ask("run", str(app), CONNECTION)["run-id"]
        _follow(workers, needed, run)


def _open(workers: Crew, serving: Serving) -> Needed:
    """Start the superlink; clients find it open when it knows whom to let in."""
    keys, inside = serving.keys, free_address() if serving.guarded else serving.address
    superlink = workers.start(superlink_command(inside, keys), "superlink.log")
    write_connection(serving.flower, inside, keys.ca if keys else None)
    wait_until_listening(superlink, inside, serving.flower / "superlink.log")
    if keys:
        _register(workers, keys)
    if not serving.guarded:
        return {"superlink": superlink}
    gate = workers.start(gate_command(serving.address, inside, keys), "gate.log")
    wait_until_listening(gate, serving.address, serving.flower / "gate.log")
    return {"superlink": superlink, "gate": gate}


def _register(workers: Crew, keys: ServerKeys) -> None:
    """Tell the superlink whom to let in."""
    try:
        for name, public_key in keys.clients.items():
            workers.ask("supernode", "register", str(public_key), CONNECTION, "--name", name)
    except FlowerError as problem:
        raise FlowerError(
            f"{problem}\nIs {keys.certificate.name} valid for {LOOPBACK}, too? The server's own "
            "processes talk over it."
        ) from problem


def _follow(workers: Crew, needed: Needed, run: str) -> None:
    """Show the run's log until the run is over."""

    def watch() -> None:
        for name, process in needed.items():
            if process.poll() is not None:
                said = last_words(workers.folder / f"{name}.log")
                raise FlowerError(f"the {name} ended (exit code {process.returncode}):\n{said}")

    said = ""
    while True:
        log = workers.start(["flwr", "log", run, CONNECTION, "--stream"], "run.log")
        shown = said.splitlines()
        said = show(log, workers.folder / "run.log", watch, shown, lambda line: FAILED in line)
        watch()
        if _is_over(workers, run):
            return
        time.sleep(2)


def _is_over(workers: Crew, run: str) -> bool:
    """Whether the run has finished; raise if it failed."""
    found = workers.ask("list", CONNECTION, "--run-id", run)["runs"][0]
    if not found["status"].startswith("finished"):
        return False
    if found["status"] != FINISHED:
        reason = found["status-details"].removeprefix(REASON)
        raise FlowerError(f"the run ended as {found['status']}: {reason}")
    return True
