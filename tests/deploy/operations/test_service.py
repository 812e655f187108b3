"""The services beside a real server: audit log, status, keys and certificates."""

import errno
import json
import os
import socket
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.x509 import load_pem_x509_certificate

from fedfm.core.errors import UserError
from fedfm.deploy.events import (
    AnswerLeftOut,
    CertificateExpires,
    CertificateProblem,
    CertificateRenewed,
    Event,
    Finished,
    KeyProblem,
    listen,
)
from fedfm.deploy.keys.certificates import make_server_files
from fedfm.deploy.keys.folders import add_client, make_keys, renew_server, revoke_client
from fedfm.deploy.operations import service
from fedfm.deploy.operations.audit import compare_files, read_audit
from fedfm.deploy.operations.certificates import CertificateWatcher
from fedfm.deploy.operations.service import Operations, Watched, operate
from fedfm.deploy.operations.status import SILENT, is_alive, is_healthy, read_status
from tests.cli.tools import Command
from tests.deploy.conftest import Fault, silent

NODES = {f"c{k}": 100 + k for k in range(3)}


class Registry:
    """Connects and disconnects the nodes of a grid in one process."""

    def __init__(self, grid) -> None:
        self.grid, self.contexts, self.known = grid, dict(grid.contexts), set(NODES)

    def register(self, name: str, public_key: bytes) -> None:
        """Connect a node."""
        if b"refuse" in public_key:
            raise RuntimeError("Flower says no")
        self.known.add(name)
        self.grid.contexts[NODES[name]] = self.contexts[NODES[name]]

    def unregister(self, name: str) -> None:
        """Disconnect a node."""
        self.known.remove(name)
        del self.grid.contexts[NODES[name]]


@pytest.fixture
def keys(tmp_path) -> Path:
    make_keys(tmp_path / "keys", ["localhost"], list(NODES), days=400)
    return tmp_path / "keys"


def run(fed, keys: Path | None = None, tamper=None, resume=False, registry=None):
    """A server with its services."""
    watched = Watched(keys / "server", registry) if keys else None
    out = fed.folder / "server"
    out.mkdir(exist_ok=True)
    with operate(out, fed.config.deployment, watched) as operations:
        fed.run(tamper, resume, beside=["audit.jsonl", "status.json"])
    return operations


def entries(fed, kind: str) -> list[dict[str, object]]:
    log = read_audit(fed.folder / "server/audit.jsonl")
    return [entry for entry in log.entries if entry["event"] == kind]


def test_a_whole_run_is_in_the_audit_log_and_in_the_status(federation, keys):
    fed = federation("fedavg")
    run(fed, keys, Fault("train", silent, client=1, at=(1,)))
    status = read_status(fed.folder / "server")
    assert (status["phase"], status["round"], status["rounds"]) == ("finished", 3, 3)
    assert not status["alive"]
    assert status["pid"] == os.getpid()
    assert [each["state"] for each in status["clients"]] == ["in", "in", "in"]
    assert [each["answered"] for each in status["clients"]] == [3, 2, 3]
    assert [each["late"] for each in status["clients"]] == [0, 1, 0]
    assert [point["round"] for point in status["curve"]] == [1, 2, 3]
    assert all(
        {"test_accuracy", "seconds", "bytes_up"} <= point.keys() for point in status["curve"]
    )
    assert status["traffic"]["bytes_up"] == sum(point["bytes_up"] for point in status["curve"])
    log = read_audit(fed.folder / "server/audit.jsonl")
    assert status["audit"] == {"entries": len(log.entries), "hash": log.hash}
    joined = {entry["name"]: entry["key"] for entry in entries(fed, "joined")}
    assert joined == {each["name"]: each["key"] for each in status["clients"]}
    assert all(str(key).startswith("SHA256:") for key in joined.values())
    (late,) = entries(fed, "left out")
    assert (late["name"], late["client"], late["late"]) == ("c1", 1, True)
    assert [entry["left_out"] for entry in entries(fed, "round ended")] == [[], [1], []]
    assert not entries(fed, "asked")


def test_the_log_names_the_files_of_the_run(federation):
    fed = federation("fedavg")
    run(fed)
    server = fed.folder / "server"
    log = read_audit(server / "audit.jsonl")
    assert compare_files(server, log) == []
    (server / "model.safetensors").write_bytes(b"another model")
    (server / "config.toml").write_text("seed = 7\n")
    config, model = compare_files(server, log)
    assert "config.toml" in config
    assert "model.safetensors" in model


def test_a_resumed_server_continues_the_log_and_knows_the_rounds_before(federation):
    fed = federation("fedavg", "deployment.minimum=3")
    with pytest.raises(UserError):
        run(fed, tamper=Fault("train", silent, client=2, at=(1,)))
    status = read_status(fed.folder / "server")
    assert (status["phase"], status["round"]) == ("stopped", 1)
    assert "deployment.minimum" in status["error"]["text"]
    begun = Operations(fed.folder / "server", fed.config.deployment)
    assert (begun.overview.round, len(begun.overview.curve)) == (1, 1)
    run(fed, resume=True)
    status = read_status(fed.folder / "server")
    assert (status["phase"], status["round"], status["error"]) == ("finished", 3, None)
    assert [point["round"] for point in status["curve"]] == [1, 2, 3]
    assert len(entries(fed, "started")) == 2
    (stopped,) = entries(fed, "stopped")
    assert "deployment.minimum" in str(stopped["reason"])


def test_a_revoked_client_is_left_out_of_the_next_question(federation, keys):
    fed = federation("fedavg")
    registry = Registry(fed.grid)
    asked: list[tuple[int, str]] = []

    def tamper(message, answer):
        node, kind = message.metadata.dst_node_id, message.metadata.message_type
        asked.append((node, kind))
        if len([each for each in asked if each[1] == "train"]) == 3:  # the end of round 1
            revoke_client(keys, "c1")
            operations.tick()
        return answer()

    out = fed.folder / "server"
    out.mkdir()
    with operate(out, fed.config.deployment, Watched(keys / "server", registry)) as operations:
        fed.run(tamper, beside=["audit.jsonl", "status.json"])
    assert [node for node, kind in asked if kind == "train"] == [100, 101, 102, 100, 102, 100, 102]
    status = read_status(out)
    assert [each["state"] for each in status["clients"]] == ["in", "revoked", "in"]
    (removed,) = entries(fed, "key removed")
    assert removed["name"] == "c1"
    assert [entry["cohort"] for entry in entries(fed, "round began")][1:] == [[0, 2], [0, 2]]


def test_a_restart_does_not_forget_that_a_client_was_revoked(federation, keys):
    fed = federation("fedavg", "deployment.minimum=1")
    run(fed, keys)
    revoke_client(keys, "c1")
    del fed.grid.contexts[NODES["c1"]]
    run(fed, keys, resume=True)
    states = {each["name"]: each["state"] for each in read_status(fed.folder / "server")["clients"]}
    assert states == {"c0": "in", "c1": "revoked", "c2": "in"}


def test_a_client_that_is_added_takes_part_from_the_next_round_on(federation, keys):
    fed = federation("fedavg", "training.clients=3")
    registry = Registry(fed.grid)
    (keys / "server/c2.pub").rename(keys / "c2.pub")
    registry.unregister("c2")

    def tamper(message, answer):
        if message.metadata.message_type == "train" and "c2" not in registry.known:
            add_client(keys, "c2", keys / "c2.pub")
            operations.tick()
        return answer()

    out = fed.folder / "server"
    out.mkdir()
    with operate(out, fed.config.deployment, Watched(keys / "server", registry)) as operations:
        fed.run(tamper, beside=["audit.jsonl", "status.json"])
    assert [entry["clients"] for entry in entries(fed, "round ended")] == [
        [0, 1],
        [0, 1, 2],
        [0, 1, 2],
    ]
    assert [entry["name"] for entry in entries(fed, "key added")] == ["c0", "c1", "c2"]


def test_keys_that_changed_while_the_server_was_down_are_told(federation, keys, tmp_path):
    fed = federation("fedavg")
    run(fed, keys)
    revoke_client(keys, "c0")
    operations = Operations(fed.folder / "server", fed.config.deployment, Watched(keys / "server"))
    with listen(operations):
        operations.begin()
    assert [entry["name"] for entry in entries(fed, "key removed")] == ["c0"]
    assert len(entries(fed, "key added")) == 3


def test_a_key_that_cannot_be_used_is_told_once(federation, keys, tmp_path):
    fed = federation("fedavg")
    out = tmp_path / "out"
    out.mkdir()
    registry = Registry(fed.grid)
    operations = Operations(out, fed.config.deployment, Watched(keys / "server", registry))
    told: list[Event] = []
    with listen(told.append):
        (keys / "server/c9.pub").write_bytes(b"half a k")
        operations.tick()
        operations.tick()
        (problem,) = told
        assert isinstance(problem, KeyProblem)
        assert problem.name == "c9"
        good = (keys / "server/c0.pub").read_bytes()
        (keys / "server/c9.pub").write_bytes(good.replace(b"c0", b"refuse"))
        operations.tick()
        operations.tick()
        assert len(told) == 2
        (keys / "server/c9.pub").unlink()
        operations.tick()
    assert len(told) == 2


# ---- certificates


@pytest.fixture
def look(monkeypatch) -> None:
    """Certificates are looked at whenever they are asked for."""
    monkeypatch.setattr("fedfm.deploy.keys.renewal.LOOK", 0.0)


def watcher(operations: Operations) -> CertificateWatcher:
    assert operations.certificates
    return operations.certificates


def keys_for(folder: Path, days: int) -> Path:
    folder.mkdir()
    for name, content in make_server_files(["localhost"], days).items():
        (folder / name).write_bytes(content)
    return folder


def test_a_certificate_that_expires_soon_is_announced_every_day(federation, tmp_path):
    fed = federation("fedavg")
    folder, told = keys_for(tmp_path / "keys", days=20), list[Event]()
    operations = Operations(tmp_path, fed.config.deployment, Watched(folder))
    start = datetime.now(UTC)
    with listen(told.append):
        operations.begin()
        for hours in (1, 23, 25, 26, 50):
            watcher(operations).poll(start + timedelta(hours=hours))
    assert [type(event) for event in told] == [CertificateExpires] * 3
    assert "fedfm keys renew" in str(told[0])
    files = [each["file"] for each in operations.status()["certificates"]]
    assert files == ["ca.pem", "server.pem"]


def test_a_certificate_with_time_left_is_not_announced(federation, tmp_path):
    told = list[Event]()
    watched = Watched(keys_for(tmp_path / "keys", days=40))
    operations = Operations(tmp_path, federation("fedavg").config.deployment, watched)
    with listen(told.append):
        operations.begin()
    assert told == []


def test_a_server_does_not_begin_with_an_expired_certificate(federation, tmp_path, monkeypatch):
    folder = keys_for(tmp_path / "keys", days=1)
    operations = Operations(tmp_path, federation("fedavg").config.deployment, Watched(folder))
    with pytest.raises(UserError, match="fedfm keys renew"):
        watcher(operations).require_valid(datetime.now(UTC) + timedelta(days=2))


def test_a_new_certificate_is_announced_and_in_the_status_at_once(federation, tmp_path, look):
    make_keys(tmp_path / "keys", ["localhost"], ["a"], days=20)
    folder, told = tmp_path / "keys/server", list[Event]()
    operations = Operations(tmp_path, federation("fedavg").config.deployment, Watched(folder))
    with listen(told.append):
        operations.begin()
        told.clear()
        renew_server(tmp_path / "keys", [], days=300, kept=None)
        operations.tick()
        operations.tick()
    (renewed,) = told
    assert isinstance(renewed, CertificateRenewed)
    assert renewed.names == ["localhost", "127.0.0.1"]
    pem = (folder / "server.pem").read_bytes()
    assert renewed.sha256 == load_pem_x509_certificate(pem).fingerprint(SHA256()).hex()
    assert operations.status()["certificates"][1]["expires"] == renewed.expires


def test_a_certificate_that_cannot_be_used_is_told_once(federation, tmp_path, look):
    """The status is written as before, with the certificate that is in use."""
    make_keys(tmp_path / "keys", ["localhost"], ["a"], days=200)
    folder, told = tmp_path / "keys/server", list[Event]()
    operations = Operations(tmp_path, federation("fedavg").config.deployment, Watched(folder))
    with listen(operations), listen(told.append):
        operations.begin()
        before, told[:] = operations.status()["certificates"], []
        (folder / "server.pem").write_text("half a certif")
        for _ in range(4):
            operations.tick()
    (problem,) = told
    assert isinstance(problem, CertificateProblem)
    status = read_status(tmp_path)
    assert status["certificates"] == before
    assert "stays in use" in status["error"]["text"]
    assert [e["event"] for e in read_audit(tmp_path / "audit.jsonl").entries][-1] == problem.kind


# ---- status


def test_who_counts_as_alive():
    now = datetime.now(UTC)
    mine = {"phase": "training", "beat": now.isoformat(), "pid": os.getpid()}
    here = mine | {"host": socket.gethostname()}
    assert is_alive(here, now)
    assert not is_alive(here | {"phase": "finished"}, now)
    assert not is_alive(here, now + timedelta(seconds=SILENT + 1))
    assert not is_alive(here | {"pid": 2**22 + 1}, now)
    assert is_alive(here | {"pid": 2**22 + 1, "host": "in-a-container"}, now)


def test_who_counts_as_healthy():
    now = datetime.now(UTC)
    status = {"phase": "training", "changed": now.isoformat()}
    assert is_healthy(status, 60, now)
    assert is_healthy(status | {"phase": "waiting"}, 60, now + timedelta(seconds=59))
    assert not is_healthy(status, 60, now + timedelta(seconds=61))
    assert not is_healthy(status | {"phase": "stopped"}, 60, now)


def test_the_command(command: Command, federation, keys):
    fed = federation("fedavg")
    run(fed, keys, Fault("train", silent, client=1, at=(1, 2)))
    server = fed.folder / "server"
    answer = command("status", server)
    assert (answer.code, answer.err) == (0, "")
    assert "3 of 3 (finished)" in answer.out
    assert "1 late" in answer.out
    assert json.loads(command("status", server, "--format", "json").out)["round"] == 3
    values = json.loads((server / "status.json").read_text())
    (server / "status.json").write_text(
        json.dumps(values | {"phase": "training", "pid": 2**22 + 1})
    )
    answer = command("status", server)
    assert answer.code == 1
    assert "not running" in answer.out
    (server / "status.json").write_text("{")
    assert command("status", server).code == 2
    assert command("status", fed.folder).code == 2


def test_names_of_clients_cannot_change_the_table(command: Command, federation):
    fed = federation("fedavg")
    run(fed)
    path = fed.folder / "server/status.json"
    values = json.loads(path.read_text())
    values["clients"][0]["reason"] = "[red]not mark-up[/red]"
    path.write_text(json.dumps(values))
    assert "[red]not" in command("status", path.parent).out


def test_services_end_with_the_server(federation, tmp_path):
    before = threading.active_count()
    with operate(tmp_path, federation("fedavg").config.deployment) as operations:
        assert threading.active_count() == before + 1
        operations(Finished(1, "m"))
    assert threading.active_count() == before
    assert read_status(tmp_path)["phase"] == "finished"


def test_an_interrupted_server_says_that_it_was_told_to_stop(federation, tmp_path):
    deployment = federation("fedavg").config.deployment
    with pytest.raises(SystemExit), operate(tmp_path, deployment):
        raise SystemExit(130)
    assert read_status(tmp_path)["error"]["text"] == "it was told to"


def test_a_full_disk_stops_the_server(federation, tmp_path, monkeypatch):
    """Nothing goes on that is not in the audit log."""
    operations = Operations(tmp_path, federation("fedavg").config.deployment)
    monkeypatch.setattr("os.write", lambda handle, line: 0)
    with pytest.raises(OSError, match=r"No space.*audit\.jsonl"):
        operations(AnswerLeftOut("late", node=1))


def test_the_reason_of_a_full_disk_is_not_hidden_by_the_services(federation, tmp_path, monkeypatch):
    """That the end cannot be written either is not what the operator must read."""
    deployment = federation("fedavg").config.deployment

    def fill() -> None:
        monkeypatch.setattr("os.write", lambda handle, line: 0)
        monkeypatch.setattr(service, "write_atomically", _no_room)
        _no_room(tmp_path / "checkpoint", b"")

    with pytest.raises(OSError, match="checkpoint"), operate(tmp_path, deployment):
        fill()


def _no_room(path: Path, content: bytes) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
