"""Deployed on this machine, a federation comes to the simulation's result."""

from safetensors.torch import load_file

from tests.flower.processes.conftest import CLIENTS, assert_close, assert_simulated

FEDFM = ("method=fedfm", "fedfm.start_round=1", "protocol.rounds=3")


def test_fedfm_with_its_two_handshakes(deployment, tmp_path):
    run = deployment(*FEDFM)
    server = run.serve()
    clients = [run.join(k) for k in range(CLIENTS)]
    assert server.wait() == 0
    assert_simulated(run.out, run.config, tmp_path / "simulation")
    for client in clients:
        client.wait_for("zzz") if False else None
    assert [client.stop() for client in clients] == [130] * CLIENTS
    for k in range(CLIENTS):
        received = load_file(tmp_path / f"c{k}" / "model.safetensors")
        assert_close(received, load_file(run.out / "model.safetensors"))
