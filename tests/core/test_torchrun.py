"""What the environment says about the processes of a run."""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from fedfm.core.torchrun import end, end_on_termination, is_first, is_launched, local_rank
from tests.cli.tools import SERVER
from tests.processes import describe_process, make_store

TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}


@pytest.mark.parametrize(
    ("changes", "launched", "first", "local"),
    [
        ({}, True, False, 3),
        ({"RANK": "0"}, True, True, 3),
        ({"WORLD_SIZE": "1"}, False, True, 0),
        ({"MASTER_PORT": None}, False, True, 0),
    ],
)
def test_a_launcher_gives_the_number_of_every_process(monkeypatch, changes, launched, first, local):
    for name, value in (TORCHRUN | {"LOCAL_RANK": "3"} | changes).items():
        if value is not None:
            monkeypatch.setenv(name, value)
    assert (is_launched(), is_first(), local_rank()) == (launched, first, local)


def test_the_only_process_ends_with_its_line(capsys):
    with pytest.raises(SystemExit, match="7"):
        end("fedfm: the end", 7)
    assert capsys.readouterr().err == "fedfm: the end\n"


def test_terminated_processes_end_in_one_line_whatever_they_wait_for(tmp_path):
    store, said = make_store(), tmp_path / "said.txt"
    started = [
        SERVER.Process(target=_wait_forever, args=(describe_process(rank, 2, store), said))
        for rank in range(2)
    ]
    for process in started:
        process.start()
    while not said.exists() or said.read_text().count("ready") < 2:
        assert all(process.is_alive() for process in started)
        time.sleep(0.01)
    for process in started:
        process.terminate()
    for process in started:
        process.join(60)
        assert process.exitcode == 128 + signal.SIGTERM
    (line,) = said.read_text().replace("ready\n", "").splitlines()
    assert line.startswith("fedfm: stopped by SIGTERM")
    assert "--resume" in line


def _wait_forever(environment: dict[str, str], said: Path) -> None:
    os.environ.update(environment)
    with said.open("ab") as file:
        os.dup2(file.fileno(), sys.stderr.fileno())
    end_on_termination()
    print("ready", file=sys.stderr, flush=True)
    lock = threading.Lock()
    with lock:
        lock.acquire()
