"""The server's web pages: metrics, health, status, the files of the live page."""

import asyncio
import json
import socket
import sys
import urllib.request
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from fedfm.config.deployment import Deployment
from fedfm.core.errors import UserError
from fedfm.deploy.events import (
    AnswerLeftOut,
    Joined,
    NodeRefused,
    RoundBegan,
    RoundEnded,
    Scored,
    Started,
    Stopped,
    emit,
    listen,
)
from fedfm.deploy.operations.service import Operations, operate
from fedfm.deploy.operations.web import CONNECTIONS, FILES, make_app, warn_of_network
from fedfm.deploy.programs.addresses import Address, free_address

HERE = Address("127.0.0.1", 9464)
STORY = [
    Started("c" * 64, "fedfm", 5, 2, False, "1.0", 2),
    Joined(0, "hospital-a", 100),
    Joined(1, "hospital-b", 101),
    NodeRefused(102, "another shape"),
    RoundBegan(1, [0, 1]),
    RoundEnded(1, "m" * 64, [0, 1], [], 2.0, 1000, 2000, 2, epsilon=1.5, delta=1e-5),
    Scored(1, {"test_accuracy": 0.75, "val_accuracy": None, "train_loss": 0.5}),
    AnswerLeftOut("no answer within 10 s", node=101, late=True),
]


@pytest.fixture
def operations(tmp_path) -> Operations:
    """The services of a server whose first round is over."""
    operations = Operations(tmp_path, Deployment(wait=10, timeout=20))
    with listen(operations):
        for event in STORY:
            emit(event)
    return operations


class Client:
    """Calls the web application in this process."""

    def __init__(self, operations: Operations, address: Address = HERE) -> None:
        self.transport = httpx.ASGITransport(make_app(operations, address))

    def get(self, path: str, method: str = "GET", **headers: str) -> httpx.Response:
        """Ask for a page."""

        async def call() -> httpx.Response:
            async with httpx.AsyncClient(transport=self.transport) as client:
                return await client.request(method, f"http://{HERE}{path}", headers=headers)

        return asyncio.run(call())


@pytest.fixture
def client(operations) -> Client:
    return Client(operations)


def read_metrics(client) -> dict[tuple[str, ...], float]:
    families = text_string_to_metric_families(client.get("/metrics").text)
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
    }


def test_prometheus_reads_the_metrics(client):
    values = read_metrics(client)
    expected = {
        ("fedfm_round",): 1,
        ("fedfm_rounds",): 5,
        ("fedfm_healthy",): 1,
        ("fedfm_round_seconds",): 2,
        ("fedfm_bytes_up_total",): 1000,
        ("fedfm_handshakes_total",): 2,
        ("fedfm_epsilon",): 1.5,
        ("fedfm_refused",): 1,
        ("fedfm_clients", "in"): 1,
        ("fedfm_clients", "late"): 1,
        ("fedfm_client_late_total", "hospital-b"): 1,
        ("fedfm_client_answered_total", "hospital-a"): 1,
        ("fedfm_score", "test_accuracy"): 0.75,
        ("fedfm_score", "train_loss"): 0.5,
    }
    assert {name: values[name] for name in expected} == expected
    assert ("fedfm_score", "val_accuracy") not in values
    assert ("fedfm_epsilon_server",) not in values


def test_a_name_cannot_forge_a_metric(operations, client):
    with listen(operations):
        emit(Joined(2, 'x"} 1\nfedfm_round 99\n# ', 103))
    assert read_metrics(client)[("fedfm_round",)] == 1


def test_health(operations, client):
    assert client.get("/health").status_code == 200
    idle = datetime.now(UTC) - timedelta(seconds=operations.patience + 1)
    operations.overview.changed = idle.isoformat()
    assert client.get("/health").status_code == 503
    assert read_metrics(client)[("fedfm_healthy",)] == 0


def test_a_stopped_server_is_not_healthy(operations, client):
    with listen(operations):
        emit(Stopped("too few clients"))
    assert client.get("/health").status_code == 503


def test_the_status_is_that_of_the_file(operations, client):
    operations.write_status()
    written = json.loads((operations.run / "status.json").read_text())
    sent = client.get("/status.json").json()
    assert sent.keys() == written.keys()
    assert sent | {"beat": ""} == written | {"beat": ""}


def test_infinite_epsilon_can_be_sent(operations, client):
    with listen(operations):
        emit(RoundEnded(2, "m", [0], [1], 1.0, 1, 1, 1, epsilon=float("inf"), delta=1e-5))
    assert client.get("/status.json").json()["epsilon"] == "inf"
    assert read_metrics(client)[("fedfm_epsilon",)] == float("inf")


@pytest.mark.parametrize("path", FILES)
def test_the_page_loads_nothing_from_elsewhere(client, path):
    answer = client.get(path)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith(FILES[path][0])
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "http" not in answer.text.replace("http://www.w3.org/2000/svg", "")
    assert "innerHTML" not in answer.text


@pytest.mark.parametrize(
    ("address", "host", "code"),
    [
        (HERE, "127.0.0.1:9464", 200),
        (HERE, "localhost:9464", 200),
        (HERE, "evil.example.org:9464", 400),
        (Address("0.0.0.0", 9464), "server.example.org:9464", 200),
    ],
)
def test_a_loopback_page_answers_only_to_this_machine_s_names(operations, address, host, code):
    assert Client(operations, address).get("/status.json", host=host).status_code == code


def test_only_reading_is_possible(client):
    assert client.get("/status.json", "POST").status_code == 405
    assert client.get("/etc/passwd").status_code == 404


def test_it_is_served_beside_the_server(tmp_path: Path):
    address = free_address()
    with operate(tmp_path, Deployment(), metrics=address):
        with urllib.request.urlopen(f"http://{address}/health", timeout=10) as answer:
            assert answer.status == 200
        with (
            pytest.raises(UserError, match="--metrics"),
            operate(tmp_path / "..", Deployment(), metrics=address),
        ):
            pass
    with socket.socket() as probe:
        assert probe.connect_ex(address) != 0


def test_half_finished_requests_neither_hold_the_port_nor_the_servers_files(tmp_path: Path):
    """They were held open without end: the run then had no file left for its checkpoint."""
    address, held = free_address(), list[socket.socket]()
    with operate(tmp_path, Deployment(), metrics=address):
        before = count_files()
        try:
            for number in range(3 * CONNECTIONS):
                held.append(socket.create_connection(address, timeout=10))
                held[-1].sendall(b"GET /health HTTP/1.1\r\n"[: number % 20])
            with urllib.request.urlopen(f"http://{address}/health", timeout=10) as answer:
                assert answer.status == 200
            theirs = count_files() - before - len(held)
            assert theirs <= CONNECTIONS
        finally:
            for each in held:
                each.close()


def count_files() -> int:
    """The files and sockets that this process has open."""
    return len([*Path("/proc/self/fd").iterdir()])


def test_without_the_package_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "fedfm.deploy.operations.web")
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    metrics = free_address()
    with (
        pytest.raises(UserError, match=r"pip install '\.\[flower\]'"),
        operate(tmp_path, Deployment(), metrics=metrics),
    ):
        pass


def test_an_address_of_the_network_is_warned_of(caplog):
    warn_of_network(HERE)
    assert not caplog.records
    warn_of_network(Address("0.0.0.0", 9464))
    assert "without a password" in caplog.text
