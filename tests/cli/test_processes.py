"""`torchrun -m fedfm`: one run of several processes, and what happens when one of them ends."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch
from safetensors.torch import load_file

from tests.cli.tools import SERVER, TINY, run_command, sets
from tests.processes import describe_process, make_store

RUN = ["run", "digits", *TINY, *sets("rounds=60", "method=scaffold")]
LAUNCH = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "fedfm"]


def test_a_killed_process_ends_the_others_in_a_line_and_the_run_goes_on(tmp_path, command):
    """Of two processes that torchrun started, one is killed; one process goes on."""
    said, folder = tmp_path / "said.txt", tmp_path / "run"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with said.open("w") as file:
        words = [*LAUNCH, *RUN, "--out", str(folder)]
        launcher = subprocess.Popen(words, stdout=file, stderr=file, env=environment)
    wait_for_rounds(folder, 3, launcher)
    os.kill(find_worker(launcher.pid, rank=1), signal.SIGKILL)
    assert launcher.wait(120) != 0
    before, *launchers = said.read_text().split("Traceback (most recent call last)")
    (line,) = re.findall(r"^fedfm: .*", before, re.MULTILINE)
    assert re.search("another process.*ended.*--resume", line)
    assert len(re.findall("round 2/60 ", before)) == 1
    assert ["ChildFailedError" in each for each in launchers] == [True]  # torchrun's own words
    assert not (folder / "summary.json").exists()
    for arguments in (("--out", folder, "--resume"), ("--out", tmp_path / "whole")):
        assert command(*RUN, *arguments).code == 0
    models = [load_file(tmp_path / each / "model.safetensors") for each in ("run", "whole")]
    for name, value in models[0].items():
        torch.testing.assert_close(value, models[1][name], rtol=1e-3, atol=1e-4)


def wait_for_rounds(folder: Path, rounds: int, launcher: subprocess.Popen[bytes]) -> None:
    lines = folder / "rounds.jsonl"
    while not lines.exists() or lines.read_bytes().count(b"\n") < rounds:
        assert launcher.poll() is None
        time.sleep(0.02)


def find_worker(launcher: int, rank: int) -> int:
    """The process of a rank among the children of torchrun."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    wanted = f"\0RANK={rank}\0".encode()
    (worker,) = [k for k in children if wanted in b"\0" + Path(f"/proc/{k}/environ").read_bytes()]
    return int(worker)


def call_twice(folder: Path, *arguments: str) -> tuple[list[int | None], str]:
    """`fedfm ARGUMENTS` in two processes, as torchrun starts them; exit codes and all words."""
    store, said = make_store(), folder / "said.txt"
    started = [
        SERVER.Process(target=_command, args=(describe_process(rank, 2, store), arguments, said))
        for rank in range(2)
    ]
    for process in started:
        process.start()
    for process in started:
        process.join(120)
    return [process.exitcode for process in started], said.read_text()


def _command(environment: dict[str, str], arguments: tuple[str, ...], said: Path) -> None:
    os.environ.update(environment)
    run_command(arguments, said)


def test_the_first_process_tells_everything_once(tmp_path):
    folder = tmp_path / "run"
    changes = sets("rounds=2", "method=fedavg", "executor=auto")
    arguments = ("run", "digits", *TINY, *changes, "--out", str(folder), "--profile")
    codes, said = call_twice(tmp_path, *arguments)
    assert codes == [0, 0]
    for words in ("round 1/2 ", "round 2/2 ", "test accuracy", "files in", r"executor \w+:"):
        assert len(re.findall(words, said)) == 1, words
    profile = json.loads((folder / "profile.json").read_text())
    assert {len(seconds) for seconds in profile.values()} == {2}
    assert "other processes" in profile
    assert re.search("seconds +┃ +% +┃ process 1", said)


def test_a_command_that_is_one_process_is_refused_in_one_line(tmp_path):
    codes, said = call_twice(tmp_path, "table", "main", "--quick")
    assert codes == [2, 2]
    (line,) = said.splitlines()
    assert re.fullmatch("fedfm: table is one process.*without torchrun.*run, extend", line)
