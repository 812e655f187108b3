"""Deployed on this machine, a federation comes to the simulation's result."""

import json

import pytest
from safetensors.torch import load_file

from fedfm.cli.run import run_and_show
from tests.deploy.processes.conftest import CLIENTS, DIGITS, assert_close, rounds_of
from tests.deploy.processes.programs import stop
from tests.folders import assert_private

MATCHING = ("method=fedfm", "fedfm.start_round=1")
INTERRUPTED = 130


def test_fedfm_with_its_two_handshakes(deployment):
    run = deployment(*DIGITS, *MATCHING, "training.rounds=3")
    server = run.serve()
    clients = [run.join(k) for k in range(CLIENTS)]
    assert server.wait() == 0
    server.wait_for_all()
    run.assert_simulated()
    assert [round["handshakes"] for round in rounds_of(run.out)] == [1, 2, 2]
    assert [client.wait() for client in clients] == [0] * CLIENTS
    assert all("the federation is over" in client.words for client in clients)
    for client in clients:
        client.wait_for_all()
    for k in range(CLIENTS):
        received = load_file(run.folder / f"c{k}" / "model.safetensors")
        assert_close(received, load_file(run.out / "model.safetensors"))


def test_tls_authentication_and_secure_sums(deployment):
    """The simulation's accuracy, by a server that sees sums; a stranger's key is refused."""
    secure = ("deployment.secure=true", f"deployment.classes={[*'0123456789']}")
    run = deployment(*DIGITS, *MATCHING, "training.rounds=2", *secure)
    keys, forged = run.folder / "keys", run.folder / "forged"
    run.make_keys(keys, *(f"c{k}" for k in range(CLIENTS)))
    run.make_keys(forged, "c3")
    (forged / "c3" / "ca.pem").write_bytes((keys / "c0" / "ca.pem").read_bytes())
    server = run.serve("--keys", keys / "server")
    server.wait_for("listening at")
    stranger = run.join(3, "--keys", forged / "c3")
    for k in range(CLIENTS):
        run.join(k, "--keys", keys / f"c{k}")
    stranger.wait_for("not let in yet")
    assert stop([stranger]) == [INTERRUPTED]
    assert server.wait() == 0
    for folder in (run.out, *(run.folder / f"c{k}" for k in range(CLIENTS))):
        assert_private(folder)
    kept = [path.read_bytes() for path in run.out.rglob("*") if path.is_file()]
    assert not any(b"site.toml" in content for content in kept)
    members = json.loads((run.out / "members.json").read_text())
    assert set(members["numbers"]) == {f"c{k}" for k in range(CLIENTS)}
    (simulated,) = run_and_show([run.config], [None], resume=False)
    for ours, theirs in zip(rounds_of(run.out), simulated.rounds, strict=True):
        assert ours["val_accuracy"] == pytest.approx(theirs.val_accuracy, abs=0.02)
        assert ours["test_accuracy"] == pytest.approx(theirs.test_accuracy, abs=0.02)
