"""One federation in networks of its own lives through everything that happens in operation."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fedfm.deploy.programs.addresses import Address
from tests.cli.tools import sets
from tests.deploy.processes.conftest import BIN, Machine
from tests.deploy.processes.network import Host, connect, make_bridge, make_host
from tests.deploy.processes.programs import Program
from tests.deploy.processes.test_attack import CONNECTION, find_superlink
from tests.deploy.superlink import write_app

CLIENTS, ROUNDS = 5, 40
SERVER, PAGE = Address("10.77.0.1", 9092), Address("127.0.0.1", 9100)
SETTINGS = (
    f"training.clients={CLIENTS}",
    f"training.rounds={ROUNDS}",
    "method=fedfm",
    "fedfm.start_round=1",
    "deployment.secure=true",
    f"deployment.classes={[f'kind{k}' for k in range(4)]}",
    "deployment.minimum=3",
    "deployment.wait=300",
    "deployment.timeout=200",
)
ASK = "import sys, urllib.request as web; print(web.urlopen(sys.argv[1]).read().decode())"
LOOK = """
import hashlib, ssl, sys
pem = ssl.get_server_certificate((sys.argv[1], int(sys.argv[2])))
print(hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest())
"""
ATTACK = """
import socket, sys, time
half = b"POST /v1/fleet/push-object HTTP/1.1\\r\\ncontent-le"
held = []
for number in range(1000):
    try:
        held.append(socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=5))
        held[-1].sendall(half[: number % len(half)])
    except OSError:
        pass
print("holding", len(held), flush=True)
time.sleep(300)
"""


@pytest.fixture
def hosts() -> Iterator[list[Host]]:
    """The server's host, those of six clients, and an attacker's, on one network."""
    with ExitStack() as stack:
        addresses = [f"10.77.0.{number}" for number in range(1, CLIENTS + 4)]
        made = [stack.enter_context(make_host(address)) for address in addresses]
        make_bridge(made[0])
        for number, host in enumerate(made[1:], 1):
            connect(made[0], host, number)
        yield made


class Operation:
    """The programs of one federation, each on its host."""

    def __init__(self, machine: Machine, hosts: list[Host], settings: tuple[str, ...]) -> None:
        self.machine, self.settings = machine, sets(*settings)
        self.server_host, *self.client_hosts, self.attacker = hosts
        self.keys, self.out = machine.folder / "keys", machine.folder / "server"

    def start(self, host: Host, name: str, *command: object, **variables: str) -> Program:
        """Start a program on a host."""
        self.machine.inside = host.inside
        return self.machine.start(name, *command, **variables)

    def fedfm(self, *words: object) -> Program:
        """Run a command on the server's host to its end."""
        number = len(self.machine.programs)
        program = self.start(self.server_host, f"command{number}", BIN / "fedfm", *words)
        assert program.wait() == 0, program.words
        return program

    def serve(self, *options: object) -> Program:
        """Start the server, with its live page."""
        at = ("--host", SERVER.host, "--port", SERVER.port, "--metrics", PAGE)
        where = ("--out", self.out, "--keys", self.keys / "server")
        words = ("serve", "digits", *self.settings, *at, *where, *options)
        return self.start(self.server_host, "server", BIN / "fedfm", *words)

    def join(self, client: int) -> Program:
        """Start a client; the sixth has the data of the fifth."""
        name, data = f"c{client}", f"share:{min(client, CLIENTS - 1)}/{CLIENTS}"
        who = ("--name", name, "--data", data, "--out", self.machine.folder / name)
        where = ("--superlink", SERVER, "--keys", self.keys / name)
        words = (BIN / "fedfm", "join", "digits", *self.settings, *who, *where)
        return self.start(self.client_hosts[client], name, *words)

    def page(self, path: str) -> str:
        """What the live page has at a path."""
        number = len(self.machine.programs)
        ask = (sys.executable, "-c", ASK, f"http://{PAGE}{path}")
        program = self.start(self.server_host, f"page{number}", *ask)
        assert program.wait() == 0, program.words
        return program.words

    def certificate(self) -> str:
        """The SHA-256 of the certificate that the server shows to clients."""
        number = len(self.machine.programs)
        look = (sys.executable, "-c", LOOK, SERVER.host, SERVER.port)
        program = self.start(self.client_hosts[0], f"look{number}", *look)
        assert program.wait() == 0, program.words
        return program.words.strip()

    def events(self, kind: str) -> list[dict[str, Any]]:
        """The entries of the audit log of one kind."""
        path = self.out / "audit.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        entries = [json.loads(line) for line in lines if line.endswith("}")]
        return [entry for entry in entries if entry["event"] == kind]

    def wait_for_rounds(self, server: Program, more: int) -> None:
        """Until that many more rounds have ended; each may take a while on a busy machine."""
        for _ in range(more):
            rounds = len(self.events("round ended"))
            server.wait_until(partial(self._has_ended_more, rounds))

    def _has_ended_more(self, rounds: int) -> bool:
        return len(self.events("round ended")) > rounds

    def wait_for_the_last_round(self, server: Program) -> None:
        """Until all rounds have ended."""
        while self.events("round ended")[-1]["round"] < ROUNDS:
            self.wait_for_rounds(server, 1)


@pytest.fixture
def operation(machine, hosts, points) -> Operation:
    machine.hosts.add(SERVER.host)
    return Operation(machine, hosts, (*points, *SETTINGS))


def names_in(operation: Operation) -> Callable[[int], str]:
    """The name of a client, by its number."""
    names = {entry["client"]: entry["name"] for entry in operation.events("joined")}
    return lambda client: names[client]


def test_a_federation_in_operation(operation):
    names = [f"c{k}" for k in range(CLIENTS)]
    who = [word for name in names for word in ("--client", name)]
    operation.fedfm("keys", "make", operation.keys, "--server", SERVER.host, *who)
    server = operation.serve()
    clients = [operation.join(k) for k in range(CLIENTS)]
    operation.wait_for_rounds(server, 2)
    check_page(operation)

    clients[4].kill()
    operation.wait_for_rounds(server, 2)
    operation.fedfm("keys", "add", operation.keys, "c5")
    operation.join(5)
    server.wait_until(lambda: "c5" in [entry["name"] for entry in operation.events("joined")])
    operation.fedfm("keys", "revoke", operation.keys, "c3")
    server.wait_until(lambda: bool(operation.events("key removed")))
    operation.wait_for_rounds(server, 2)
    try_foreign_app(operation, server)

    renew_certificate(operation, server)
    attack = (sys.executable, "-c", ATTACK, SERVER.host, SERVER.port)
    attacker = operation.start(operation.attacker, "attacker", *attack)
    attacker.wait_for("holding")
    operation.wait_for_rounds(server, 2)
    attacker.kill()

    server.kill()
    server = operation.serve("--resume")
    operation.wait_for_the_last_round(server)
    assert server.wait() == 0
    assert "waiting for 4 clients" in server.words
    check_audit(operation)


def check_page(operation: Operation) -> None:
    """The health check, the metrics, the status and the page are there."""
    assert operation.page("/health").strip() == "ok"
    assert f"fedfm_rounds {ROUNDS}.0" in operation.page("/metrics")
    assert json.loads(operation.page("/status.json"))["rounds"] == ROUNDS
    assert "<html" in operation.page("/")
    assert "c0" in operation.fedfm("status", operation.out).words


def renew_certificate(operation: Operation, server: Program) -> None:
    """New connections see the new certificate; server and clients go on as they are."""
    before = operation.certificate()
    operation.fedfm("keys", "renew", operation.keys)
    server.wait_until(lambda: bool(operation.events("certificate renewed")))
    operation.wait_for_rounds(server, 2)
    (renewed,) = operation.events("certificate renewed")
    assert operation.certificate() == renewed["sha256"] != before


def try_foreign_app(operation: Operation, server: Program) -> None:
    """Another user of the server's machine starts an app: it runs nowhere."""
    folder: Path = operation.machine.folder
    (home := folder / "home").mkdir()
    ca = operation.keys / "server" / "ca.pem"
    text = CONNECTION.format(address=find_superlink(server), ca=ca)
    (home / "config.toml").write_text(text)
    app = write_app(folder / "foreign", folder / "mark")
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    command = (BIN / "flwr", "run", app, "here")
    host = operation.server_host
    stranger = operation.start(host, "stranger", *command, FLWR_HOME=str(home), **quiet)
    assert stranger.wait() != 0
    assert not (folder / "mark").exists()


def check_audit(operation: Operation) -> None:
    """The audit log holds, and has everything that happened."""
    answer = operation.fedfm("audit", operation.out, "--format", "json")
    assert json.loads(answer.words)
    name = names_in(operation)
    assert {entry["name"] for entry in operation.events("joined")} == {f"c{k}" for k in range(6)}
    assert [entry["name"] for entry in operation.events("key removed")] == ["c3"]
    assert len(operation.events("started")) == 2
    assert len(operation.events("finished")) == 1
    rounds = operation.events("round ended")
    assert len(operation.events("certificate renewed")) == 1
    assert operation.events("certificate problem") == []
    taken = [{name(client) for client in entry["clients"]} for entry in rounds]
    assert taken[0] == {f"c{k}" for k in range(CLIENTS)}
    assert taken[-1] == {"c0", "c1", "c2", "c5"}
    assert rounds[-1]["round"] == ROUNDS
