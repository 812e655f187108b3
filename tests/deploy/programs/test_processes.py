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
from fedfm.deploy.programs.log import follow_log
from fedfm.deploy.programs.orphans import find_orphans
from fedfm.deploy.programs.processes import FlowerError, flower_variables, supervise

DETACHED = ["sh", "-c", "setsid sleep 300 & sleep 300"]
"""A program that starts another in a session of its own, as Flower's do."""


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(processes, "GRACE", 0.2)
    return tmp_path / "flower"


def wait_for(count: int, folder: Path) -> None:
    """Wait until so many processes of a crew run."""
    end = time.monotonic() + 10
    while len(find_orphans(folder)) != count:
        assert time.monotonic() < end
        time.sleep(0.02)


def test_all_processes_end_with_the_block(folder):
    with supervise(folder, {}) as workers:
        workers.start(DETACHED, "log")
        wait_for(3, folder)
    assert find_orphans(folder) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_all_processes_end_on_a_signal(folder, number):
    before = signal.getsignal(number)
    with pytest.raises(SystemExit) as left:
        _told_to_stop(folder, number)
    assert left.value.code == 128 + number
    assert find_orphans(folder) == []
    assert signal.getsignal(number) == before


def _told_to_stop(folder: Path, number: int) -> None:
    with supervise(folder, {}) as workers:
        workers.start(DETACHED, "log")
        wait_for(3, folder)
        os.kill(os.getpid(), number)
        time.sleep(10)


def test_a_process_that_does_not_listen_is_killed(folder):
    stubborn = "import signal, time; signal.signal(15, signal.SIG_IGN); print('on'); time.sleep(99)"
    with supervise(folder, {}) as workers:
        workers.start([sys.executable, "-c", stubborn], "log")
        while "on" not in (folder / "log").read_text():
            time.sleep(0.02)
    assert find_orphans(folder) == []


def test_what_a_killed_command_left_is_ended_by_the_next(folder):
    code = (
        "from pathlib import Path; from fedfm.deploy.programs.processes import supervise\n"
        f"with supervise(Path({str(folder)!r}), {{}}) as workers:\n"
        f"    workers.start({DETACHED!r}, 'log').wait()"
    )
    command = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL)
    wait_for(3, folder)
    command.kill()
    command.wait()
    wait_for(2, folder)  # the first process went with its parent: Linux told it
    with supervise(folder, {}):
        assert find_orphans(folder) == []


def test_a_folder_has_one_command_at_a_time(folder):
    with (
        supervise(folder, {}),
        pytest.raises(UserError, match="another command"),
        supervise(folder, {}),
    ):
        pass


def test_the_commands_can_be_copied(folder, capsys):
    with supervise(folder, {"FLWR_HOME": "/a b"}) as workers:
        workers.start(["true", "a b"], "log").wait()
    export, command = capsys.readouterr().out.splitlines()
    assert export.startswith("export PATH=")
    assert export.endswith(" FLWR_HOME='/a b'")
    assert command == "true 'a b'"


def test_what_flwr_says_when_it_fails(folder, tmp_path, monkeypatch):
    for name in ("flwr", "flower-superlink"):
        (tmp_path / name).write_text("#!/bin/sh\necho no such thing\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setattr(processes, "find_flower", lambda: tmp_path)
    with supervise(folder, {}) as workers, pytest.raises(FlowerError, match="no such thing"):
        workers.run_flwr("list")


def test_without_the_extra_it_says_what_to_install(folder, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with (
        pytest.raises(UserError, match=r"pip install '\.\[flower\]'"),
        supervise(folder, {}),
    ):
        pass


def test_telemetry_is_off_unless_asked_for(folder):
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    assert flower_variables(folder, False) == flower_variables(folder, True) | quiet
    assert not flower_variables(folder, True).keys() & quiet.keys()


def test_a_log_is_shown_without_noise_and_colours(folder, capsys):
    with supervise(folder, {}) as workers:
        said = "\\033[92mINFO \\033[0m:      \\nINFO:     Uvicorn\\n\\033[92mround 1\\033[0m\\nend"
        log = workers.start(["printf", said], "log")
        capsys.readouterr()
        assert "Uvicorn" in follow_log(log, folder / "log")
    assert capsys.readouterr().out.splitlines() == ["round 1", "end"]


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
    with supervise(folder, {}) as workers:
        failed = workers.start(["sh", "-c", "echo out of order; exit 1"], "superlink.log")
        with pytest.raises(FlowerError, match=r"superlink.*\nout of order"):
            wait_until_listening(failed, free_address(), folder / "superlink.log")
