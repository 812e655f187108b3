"""Flower's own commands, without `fedfm serve` and `fedfm join`: run after run on one superlink."""

from collections.abc import Callable
from pathlib import Path

import pytest
import tomli_w

from fedfm.config import Config, load_config
from fedfm.deploy.programs.addresses import free_address, wait_until_listening
from tests.deploy.conftest import FEATURE_MATCHING
from tests.deploy.processes.conftest import BIN, CLIENTS, Machine, assert_simulated
from tests.deploy.processes.programs import Program

APP = """
[project]
name = "federation"
version = "1.0.0"

[tool.flwr.app]
publisher = "us"

[tool.flwr.app.components]
serverapp = "fedfm.deploy.server_app:app"
clientapp = "fedfm.deploy.client_app:app"

[tool.flwr.app.config]
config = "digits"
out = "runs/flower"
"""
CONNECTION = """
[superlink.here]
address = "{address}"
insecure = true
"""
MATCHING = tuple(f"fedfm-lite.{each}" for each in FEATURE_MATCHING)
RUNS = {
    "fedavg": ("training.rounds=2",),
    "scaffold": ("training.rounds=2",),
    "fedfm-lite": ("training.rounds=4", "fedfm-lite.models_every=2", *MATCHING),
}


def site(k: int) -> str:
    """A client's site file."""
    data = {"source": "share", "share": k, "of": CLIENTS}
    return tomli_w.dumps({"name": f"c{k}", "out": f"c{k}", "data": data})


@pytest.fixture
def flwr_run(machine: Machine) -> Callable[[Config, Path], None]:
    """`flwr run` on a superlink with three supernodes."""
    folder, address = machine.folder, free_address()
    variables = {
        "PATH": f"{BIN}:/usr/bin:/bin",
        "FLWR_HOME": str(folder / "home"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
    }
    for name, text in (
        ("app/pyproject.toml", APP),
        ("home/config.toml", CONNECTION.format(address=address)),
        *((f"c{k}.toml", site(k)) for k in range(CLIENTS)),
    ):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)

    def start(name: str, program: str, *options: object) -> Program:
        return machine.start(name, BIN / program, "--insecure", *options, **variables)

    at = ("--host", address.host, "--port", address.port)
    no_packages = "--disable-runtime-dependency-installation"
    superlink = start("superlink", "flower-superlink", no_packages, *at)
    for k in range(CLIENTS):
        own = ("--host", address.host, "--port", free_address().port)
        who = ("--node-config", f'site="{folder / f"c{k}.toml"}"')
        start(f"c{k}", "flower-supernode", "--superlink", address, *own, *who)

    wait_until_listening(superlink.process, address, superlink.said)

    def run(config: Config, out: Path) -> None:
        file = out.with_suffix(".toml")
        file.write_text(tomli_w.dumps(config.as_toml()))
        given = f'config="{file}" out="{out}"'
        command = (BIN / "flwr", "run", folder / "app", "here", "--stream", "--run-config", given)
        assert machine.start("run", *command, **variables).wait() == 0

    return run


def test_runs_one_after_the_other(flwr_run, points, tmp_path):
    """What clients keep of one federation does not get into the next."""
    for method, overrides in RUNS.items():
        config = load_config("digits", (*points, f"method={method}", *overrides))
        flwr_run(config, tmp_path / method)
        assert_simulated(tmp_path / method, config)
