"""Processes that are killed, interrupted or run out of disk, and go on with --resume."""

import json
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.tools import sets, start
from tests.folders import contents, timeless

ROUNDS = 12
A_ROUND = 0.1
"""Seconds, about; they are longer on a busy machine, so that a kill never comes too late there."""
RUN = (
    "run",
    "digits",
    *sets("partition.kind=niid2", "clients=6", "participation=0.5", f"rounds={ROUNDS}"),
    *sets("lr=0.01", "epochs=4", "batch_size=16", "executor=stacked"),
    *sets("model.name=cnn", "model.channels=[4, 8]", "model.norm=batch"),
)
METHODS = {
    "fedfm": sets("method=fedfm", "fedfm.strength=1.0", "fedfm.start_round=3"),
    "fedfm-lite with client state": sets(
        "method=fedfm-lite",
        "fedfm-lite.strength=1.0",
        "fedfm-lite.start_round=3",
        "fedfm-lite.models_every=2",
    ),
}


class Run:
    """A run of the command line in a folder, in one process after another."""

    def __init__(self, folder: Path, *settings: str) -> None:
        self.folder, self.said = folder, folder.with_suffix(".txt")
        self.settings = settings

    def start(self, largest_file: int | None = None) -> None:
        self.process = start(
            *RUN,
            *self.settings,
            "--resume",
            "--out",
            str(self.folder),
            said=self.said,
            largest_file=largest_file,
        )

    def end(self, signal: int | None = None) -> int | None:
        """Wait for the end, or bring it about; the exit code, negative after a fatal signal."""
        assert self.process.pid is not None
        if signal is not None:
            os.kill(self.process.pid, signal)
        self.process.join(60)
        code = self.process.exitcode
        self.process.close()
        return code

    def wait_for(self, done: Callable[[], bool]) -> None:
        """Wait until the running process has got somewhere."""
        deadline = time.monotonic() + 60
        while not done():
            assert self.process.is_alive(), self.said.read_text()
            assert time.monotonic() < deadline
            time.sleep(0.001)

    def saved(self) -> int:
        """The round of the last checkpoint; 0 before there is one."""
        try:
            manifest = (self.folder / "checkpoint" / "manifest.json").read_text()
        except FileNotFoundError:
            return 0
        return int(json.loads(manifest)["facts"]["round"])


@pytest.mark.parametrize("method", METHODS)
def test_a_run_killed_again_and_again_ends_as_one_that_never_was(tmp_path, method):
    whole, killed = (Run(tmp_path / name, *METHODS[method]) for name in ("whole", "killed"))
    whole.start()
    assert whole.end() == 0, whole.said.read_text()

    stages = [killed.folder.exists, *(lambda r=r: killed.saved() >= r for r in (1, 3, 4, 6))]
    reached = []
    for stage in stages:
        killed.start()
        killed.wait_for(stage)
        time.sleep(random.uniform(0, A_ROUND))
        assert killed.end(signal.SIGKILL) == -signal.SIGKILL, killed.said.read_text()
        reached.append(killed.saved())
    assert reached == sorted(reached)
    assert reached[-1] < ROUNDS
    killed.start()
    assert killed.end() == 0, killed.said.read_text()
    assert timeless(killed.folder) == timeless(whole.folder)


def test_a_run_interrupted_from_the_keyboard_says_how_to_go_on(tmp_path):
    run = Run(tmp_path / "run", *sets("method=fedavg"))
    run.start()
    run.wait_for(lambda: run.saved() >= 1)
    assert run.end(signal.SIGINT) == 130
    *rounds, last = run.said.read_text().splitlines()
    assert last == "fedfm: interrupted; continue with --resume"
    assert len(rounds) < ROUNDS
    run.start()
    assert run.end() == 0


def test_a_full_disk_ends_a_run_in_words_and_the_checkpoint_before_is_whole(tmp_path):
    """The more clients have kept a model since models were shared, the larger a checkpoint is."""
    whole, filled = (
        Run(
            tmp_path / name,
            *METHODS["fedfm-lite with client state"],
            *sets("fedfm-lite.models_every=4", "participation=0.3", "rounds=4"),
        )
        for name in ("whole", "filled")
    )
    whole.start()
    assert whole.end() == 0
    model = (whole.folder / "model.safetensors").stat().st_size

    filled.start(largest_file=4 * model)
    assert filled.end() == 2
    *rounds, last = filled.said.read_text().splitlines()
    assert 0 < len(rounds) == filled.saved() < 4
    file = filled.folder / "checkpoint" / f"state-{filled.saved() + 1:06d}.safetensors"
    assert last == f"fedfm: File too large ({file}); everything saved before is intact"
    assert not [name for name in contents(filled.folder) if name.endswith(".partial")]

    filled.start()
    assert filled.end() == 0, filled.said.read_text()
    assert timeless(filled.folder) == timeless(whole.folder)
