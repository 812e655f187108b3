"""Another user of the server's machine starts a foreign app: it executes nothing anywhere."""

import sys
from pathlib import Path

import pytest

from tests.deploy.processes.conftest import BIN, CLIENTS, Deployment
from tests.deploy.processes.programs import Program, listening
from tests.deploy.superlink import write_app

CONNECTION = """
[superlink.here]
address = "{address}"
root-certificates = "{ca}"
"""
LOG_IN = """
import sys
from flwr.cli.constant import ACCESS_TOKEN_STORE_KEY, AUTHN_TYPE_STORE_KEY, REFRESH_TOKEN_STORE_KEY
from flwr.common.constant import AuthnType
from flwr.supercore.credential_store import get_credential_store
store, host, token = get_credential_store(), sys.argv[1], open(sys.argv[2], "rb").read()
store.set(AUTHN_TYPE_STORE_KEY % host, AuthnType.OIDC.encode())
store.set(ACCESS_TOKEN_STORE_KEY % host, token)
store.set(REFRESH_TOKEN_STORE_KEY % host, b"none")
"""


SUPERLINK = "fedfm.deploy.flower.superlink"


def find_superlink(server: Program) -> str:
    """The address of a server's superlink, from the command that runs it."""
    for process in server.tree:
        words = (Path("/proc") / str(process) / "cmdline").read_bytes().decode().split("\0")
        if SUPERLINK in words:
            return words[words.index(SUPERLINK) + 1]
    raise AssertionError("no superlink runs")


@pytest.fixture
def federation(deployment, points) -> tuple[Deployment, Program, list[Program]]:
    """A federation with keys that has begun."""
    run: Deployment = deployment(*points, "method=scaffold", "training.rounds=40")
    keys = run.folder / "keys"
    run.make_keys(keys, *(f"c{k}" for k in range(CLIENTS)))
    server = run.serve("--keys", keys / "server")
    server.wait_for("listening at")
    clients = [run.join(k, "--keys", keys / f"c{k}") for k in range(CLIENTS)]
    server.wait_until(lambda: run.checkpoint() >= 1)
    return run, server, clients


def test_a_foreign_app_runs_nowhere(federation, machine):
    run, server, clients = federation
    address, marks = find_superlink(server), run.folder / "marks"
    home = run.folder / "home"
    home.mkdir()
    marks.mkdir()
    ca = run.folder / "keys" / "server" / "ca.pem"
    (home / "config.toml").write_text(CONNECTION.format(address=address, ca=ca))
    variables = {
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
    }
    app = write_app(run.folder / "foreign", marks / "mark")
    attack = (BIN / "flwr", "run", app, "here")

    stranger = machine.start("stranger", *attack, **variables)
    assert stranger.wait() != 0
    assert "uthentication" in stranger.words

    token = run.out / "flower" / "control.token"
    log_in = machine.start("log-in", sys.executable, "-c", LOG_IN, address, token, **variables)
    assert log_in.wait() == 0
    administrator = machine.start("administrator", *attack, **variables)
    assert administrator.wait() == 0, administrator.words
    assert "Successfully started run" in administrator.words

    for client in clients:
        for process in client.tree:
            assert listening(Path("/proc") / str(process)) == set()
    assert server.wait() == 0
    assert [client.wait() for client in clients] == [0] * CLIENTS
    assert list(marks.iterdir()) == []
    run.assert_simulated()
