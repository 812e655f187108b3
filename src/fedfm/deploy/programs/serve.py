"""The server's side of a deployment: a superlink, a proxy in front of it, and one run."""

import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from fedfm.deploy.programs.addresses import (
    LOOPBACK,
    Address,
    free_address,
    require_free,
    wait_until_listening,
)
from fedfm.deploy.programs.keys import ServerKeys
from fedfm.deploy.programs.log import follow_log
from fedfm.deploy.programs.processes import (
    FlowerError,
    Processes,
    flower_variables,
    last_lines,
    supervise,
)
from fedfm.run.folder import RunFolder

CONNECTION = "fedfm"
"""The name of the superlink in Flower's configuration."""
APP = {
    "serverapp": "fedfm.deploy.server_app:app",
    "clientapp": "fedfm.deploy.client_app:app",
}
"""The two halves of the Flower app, as module:attribute."""
FINISHED = "finished:completed"
FAILED = "ServerApp raised an exception"
"""What Flower logs before a traceback; the reason is printed when the run is over."""
REASON = "ServerApp failed with exception: "
"""How Flower's reason begins."""
Needed = dict[str, "subprocess.Popen[bytes]"]
"""The processes that a run needs, by name."""


@dataclass(frozen=True)
class Serving:
    """The settings of one run on this machine as the server."""

    config: dict[str, Any]
    """The resolved config, as plain values."""
    out: Path
    address: Address
    """The address for clients."""
    keys: ServerKeys | None = None
    resume: bool = False
    telemetry: bool = False
    metrics: Address | None = None
    """The address of metrics and the live page."""
    log_json: bool = False

    @property
    def uses_proxy(self) -> bool:
        """Whether a proxy is between the clients and the superlink."""
        return self.keys is not None or not self.address.is_loopback

    @property
    def flower(self) -> Path:
        """The folder of Flower's files."""
        return self.out.resolve() / "flower"

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables of the processes; the ServerApp inherits them."""
        return flower_variables(self.flower, self.telemetry) | {
            "FEDFM_OUT": str(self.out.resolve()),
            "FEDFM_RESUME": "1",  # `serve` has checked that the folder holds this run
            "FEDFM_KEYS": str(self.keys.ca.parent) if self.keys else "",
            "FEDFM_METRICS": str(self.metrics or ""),
            "FEDFM_LOG_JSON": "1" if self.log_json else "",
        }


def superlink_command(address: Address, keys: ServerKeys | None) -> list[str]:
    """Return the `flower-superlink` command; it has no database, which would halve its speed.

    A restarted superlink loses nothing of value: clients are registered again and reconnect.
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


def proxy_command(outside: Address, inside: Address, keys: ServerKeys | None) -> list[str]:
    """Return the command of the proxy between clients and the superlink."""
    files = [str(keys.ca), str(keys.certificate), str(keys.key)] if keys else []
    return [sys.executable, "-m", "fedfm.deploy.programs.proxy", str(outside), str(inside), *files]


def serve(serving: Serving) -> None:
    """Start a superlink and one run on it, wait for its end; raise `FlowerError` if it failed."""
    require_free(serving.address)
    RunFolder.open(serving.out, serving.config, serving.resume)
    app = serving.out.resolve() / "app"
    _write_toml(app / "pyproject.toml", _describe_app(serving.config))
    with supervise(serving.flower, serving.variables) as processes:
        needed = _open(processes, serving)
        run = processes.run_flwr("run", str(app), CONNECTION)["run-id"]
        _follow(processes, needed, run)


def _describe_app(config: dict[str, Any]) -> dict[str, Any]:
    """Return the project of a Flower app: a config and two names of the installed package."""
    app = {"publisher": "fedfm", "components": APP, "config": {"config": json.dumps(config)}}
    project = {"name": "fedfm-run", "version": "1.0.0", "description": "A run of FedFM"}
    return {"project": project, "tool": {"flwr": {"app": app}}}


def _write_toml(path: Path, table: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(tomli_w.dumps(table), encoding="utf-8")


def _open(processes: Processes, serving: Serving) -> Needed:
    """Start the superlink, register the clients' keys, and only then let clients connect."""
    keys, inside = serving.keys, free_address() if serving.uses_proxy else serving.address
    superlink = processes.start(superlink_command(inside, keys), "superlink.log")
    security = {"root-certificates": str(keys.ca)} if keys else {"insecure": True}
    known = {"default": CONNECTION, CONNECTION: {"address": str(inside), **security}}
    _write_toml(serving.flower / "config.toml", {"superlink": known})
    wait_until_listening(superlink, inside, serving.flower / "superlink.log")
    if keys:
        _register(processes, keys)
    if not serving.uses_proxy:
        return {"superlink": superlink}
    proxy = processes.start(proxy_command(serving.address, inside, keys), "proxy.log")
    wait_until_listening(proxy, serving.address, serving.flower / "proxy.log")
    return {"superlink": superlink, "proxy": proxy}


def _register(processes: Processes, keys: ServerKeys) -> None:
    """Register the clients' public keys with the superlink."""
    try:
        for name, key in keys.clients.items():
            processes.run_flwr("supernode", "register", str(key), CONNECTION, "--name", name)
    except FlowerError as problem:
        raise FlowerError(
            f"{problem}\nIs {keys.certificate.name} also valid for {LOOPBACK}? The server's own "
            "processes connect to it."
        ) from problem


def _follow(processes: Processes, needed: Needed, run: str) -> None:
    """Print the run's log until the run is over."""

    def watch() -> None:
        for name, process in needed.items():
            if process.poll() is not None:
                end = last_lines(processes.folder / f"{name}.log")
                raise FlowerError(f"the {name} ended (exit code {process.returncode}):\n{end}")

    text, path = "", processes.folder / "run.log"
    while True:
        log = processes.start(["flwr", "log", run, CONNECTION, "--stream"], path.name)
        text = follow_log(log, path, watch, text.splitlines(), lambda line: FAILED in line)
        watch()
        if _is_over(processes, run):
            return
        time.sleep(2)


def _is_over(processes: Processes, run: str) -> bool:
    """Return whether the run has finished; raise `FlowerError` if it failed."""
    record = processes.run_flwr("list", CONNECTION, "--run-id", run)["runs"][0]
    if not record["status"].startswith("finished"):
        return False
    if record["status"] != FINISHED:
        reason = record["status-details"].removeprefix(REASON)
        raise FlowerError(f"the run ended as {record['status']}: {reason}")
    return True
