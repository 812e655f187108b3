"""Processes that end with their command, and addresses."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedfm.core.errors import UserError
from fedfm.deploy.programs import processes
from fedfm.deploy.programs.addresses import (
    Address,
    free_address,
    require_free,
    wait_until_listening,
)
from fedfm.deploy.programs.processes import (
    FlowerError,
    lock_folder,
    make_private_files,
    require_flower,
    supervise,
)

SLEEP = ["sleep", "300"]


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(processes, "GRACE", 0.2)
    (tmp_path / "flower").mkdir()
    return tmp_path / "flower"


def test_all_processes_end_with_the_block(folder):
    with supervise(folder) as workers:
        child = workers.start(SLEEP, "log")
        assert child.poll() is None
    assert child.poll() == -signal.SIGTERM


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_all_processes_end_on_a_signal(folder, number):
    before, started = signal.getsignal(number), list[subprocess.Popen[bytes]]()
    with pytest.raises(SystemExit) as left:
        _told_to_stop(folder, number, started)
    assert left.value.code == 128 + number
    assert started[0].poll() is not None
    assert signal.getsignal(number) == before


def _told_to_stop(folder: Path, number: int, started: "list[subprocess.Popen[bytes]]") -> None:
    with lock_folder(folder), supervise(folder) as workers:
        started.append(workers.start(SLEEP, "log"))
        os.kill(os.getpid(), number)
        time.sleep(10)


def test_a_process_that_does_not_listen_is_killed(folder):
    stubborn = "import signal, time; signal.signal(15, signal.SIG_IGN); print('on'); time.sleep(99)"
    with supervise(folder) as workers:
        child = workers.start([sys.executable, "-c", stubborn], "log")
        while "on" not in (folder / "log").read_text():
            time.sleep(0.02)
    assert child.poll() == -signal.SIGKILL


def test_processes_end_with_a_command_that_is_killed(folder):
    code = (
        "from pathlib import Path; from fedfm.deploy.programs.processes import supervise\n"
        f"with supervise(Path({str(folder)!r})) as workers:\n"
        f"    child = workers.start({SLEEP!r}, 'log'); print(child.pid, flush=True); child.wait()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as command:
        assert command.stdout is not None
        child = Path("/proc") / command.stdout.readline().decode().strip()
        assert child.exists()
        command.kill()
    end = time.monotonic() + 10
    while child.exists() and "State:\tZ" not in (child / "status").read_text():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_process_that_has_ended_is_named(folder):
    with supervise(folder) as workers:
        workers.check()
        workers.start(["sh", "-c", "echo out of memory; exit 3"], "superlink.log").wait()
        with pytest.raises(FlowerError, match=r"superlink .*\b3\b.*\nout of memory"):
            workers.check()


def test_a_folder_has_one_command_at_a_time(folder):
    with (
        lock_folder(folder),
        pytest.raises(UserError, match="another command"),
        lock_folder(folder),
    ):
        pass


def test_only_the_owner_can_look_into_the_folder(tmp_path):
    (tmp_path / "old" / "flower").mkdir(parents=True, mode=0o755)
    for place in (tmp_path / "new" / "flower", tmp_path / "old" / "flower"):
        with lock_folder(place):
            (place / "inner").mkdir()
            (place / "file").write_text("secret")
        assert place.stat().st_mode & 0o777 == 0o700
        assert (place / "inner").stat().st_mode & 0o777 == 0o700
        assert {(place / each).stat().st_mode & 0o777 for each in ("file", "lock")} == {0o600}
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700


def test_the_mask_of_permissions_is_given_back():
    before = os.umask(0o022)
    try:
        with make_private_files():
            pass
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(before)


def test_without_the_extra_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(processes, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install '\.\[flower\]'"):
        require_flower()


def test_flower_does_not_call_home(folder):
    with supervise(folder) as workers:
        workers.start(["env"], "log").wait()
    variables = (folder / "log").read_text().splitlines()
    assert {"FLWR_TELEMETRY_ENABLED=0", "FLWR_DISABLE_UPDATE_CHECK=1"} <= {*variables}


@pytest.mark.parametrize(
    ("text", "host", "port", "loopback"),
    [
        ("127.0.0.1:9092", "127.0.0.1", 9092, True),
        ("localhost:1", "localhost", 1, True),
        ("[::1]:9092", "::1", 9092, True),
        ("0.0.0.0:9092", "0.0.0.0", 9092, False),
        ("fl.example.org:9092", "fl.example.org", 9092, False),
        ("[2001:db8::7]:9092", "2001:db8::7", 9092, False),
    ],
)
def test_addresses(text, host, port, loopback):
    address = Address.parse(text)
    assert (address.host, address.port) == (host, port)
    assert str(address) == text
    assert address.is_loopback == loopback


@pytest.mark.parametrize("text", ["", "127.0.0.1", ":9092", "host:", "host:0", "host:99999", "h:x"])
def test_what_is_no_address(text):
    with pytest.raises(UserError, match=f"'{text}'.*HOST:PORT"):
        Address.parse(text)


def test_a_port_in_use():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = Address(*taken.getsockname())
        with pytest.raises(UserError, match=rf"{address}\b.*--port"):
            require_free(address)
    require_free(free_address())


def test_a_program_that_ends_before_it_listens(folder):
    with supervise(folder) as workers:
        failed = workers.start(["sh", "-c", "echo out of order; exit 1"], "superlink.log")
        with pytest.raises(FlowerError, match=r"superlink.*\nout of order"):
            wait_until_listening(failed, free_address(), folder / "superlink.log")
