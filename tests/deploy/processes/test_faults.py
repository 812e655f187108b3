"""Power cuts and network cuts, with real processes: the run goes on."""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from tests.deploy.processes.conftest import CLIENTS, Machine, rounds_of
from tests.deploy.processes.network import make_host
from tests.deploy.processes.programs import Program


def trainings(client: Program) -> int:
    """How often a client has been asked to train."""
    return client.words.count("question 'train'")


def test_the_server_is_killed_in_the_middle_of_a_round(deployment, points):
    """It goes on from the last finished round, and the clients with what lies on their disks."""
    run = deployment(*points, "method=scaffold", "training.rounds=3")
    server = run.serve()
    clients = [run.join(k) for k in range(CLIENTS)]
    server.wait_until(lambda: run.keeps_state_of(2))
    server.kill()
    assert run.checkpoint() == 1
    assert run.serve("--resume").wait() == 0
    assert [client.process.poll() for client in clients] == [None] * CLIENTS
    run.assert_simulated()


def test_a_client_is_killed_and_comes_back(deployment, points):
    """The others go on; it has its number and its state again."""
    run = deployment(
        *points,
        "method=scaffold",
        "training.rounds=6",
        "deployment.minimum=2",
    )
    server = run.serve()
    *_, victim = [run.join(k) for k in range(CLIENTS)]
    server.wait_until(lambda: trainings(victim) == 2)
    victim.kill()
    run.join(2)
    assert server.wait() == 0
    sent = [round["floats_up"] for round in rounds_of(run.out)]
    missed = [round for round, floats in enumerate(sent) if floats < max(sent)]
    assert missed[0] == 1
    assert missed[-1] < 5
    assert server.words.count("client 2 is 'c2'") == 2
    run.assert_simulated_without(lambda round, kind, client: client == 2 and round in missed)


def test_the_servers_disk_is_full_while_it_writes_a_checkpoint(deployment, points):
    """It ends with one line that says what to do, and goes on when there is room."""
    run = deployment(*points, "method=scaffold", "training.rounds=6")
    server = run.serve()
    clients = [run.join(k) for k in range(CLIENTS)]
    server.wait_until(lambda: run.checkpoint() >= 1)
    partial = run.out / "checkpoint" / "manifest.json.partial"
    while server.process.poll() is None:
        with suppress(FileExistsError):
            partial.symlink_to("/dev/full")
        time.sleep(0.01)
    assert server.wait() == 1
    (line,) = [line for line in server.words.splitlines() if line.startswith("fedfm: the disk")]
    assert "make room, then continue with --resume" in line
    assert 1 <= run.checkpoint() < 6
    partial.unlink(missing_ok=True)
    assert run.serve("--resume").wait() == 0
    assert [client.process.poll() for client in clients] == [None] * CLIENTS
    run.assert_simulated()


@pytest.fixture
def loopback(machine: Machine) -> Iterator[Callable[[str], None]]:
    """A network of the test's own with nothing in it but loopback, to be set "up" or "down"."""
    with make_host() as host:
        machine.inside = host.inside
        yield lambda state: host.ip("link", "set", "lo", state)


def test_the_network_is_cut_in_the_middle_of_a_round(loopback, deployment, points):
    run = deployment(*points, "method=scaffold", "training.rounds=3")
    server = run.serve()
    first, *_ = [run.join(k) for k in range(CLIENTS)]
    server.wait_until(lambda: trainings(first) == 2)
    loopback("down")
    time.sleep(10)
    loopback("up")
    assert server.wait() == 0
    run.assert_simulated()
