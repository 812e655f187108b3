"""Where the time went: phases count for themselves alone and add up to the whole."""

import itertools
import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from fedfm import Partition, Training, simulate
from fedfm.engine import profile as profiling
from fedfm.engine.profile import Profile, phase
from fedfm.methods import FedFM, Scaffold
from fedfm.verify import fixtures
from tests.cli import conftest
from tests.cli.tools import TINY, sets
from tests.folders import contents, timeless

command = conftest.command


class Clock:
    """A clock that goes on when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(profiling, "time", made)
    return made


def test_a_phase_within_another_counts_for_itself_alone(clock):
    with Profile() as profile:
        clock.now += 1
        with phase("outer"):
            clock.now += 2
            with phase("inner"):
                clock.now += 4
                with phase("outer"):
                    clock.now += 8
            clock.now += 16
        with phase("inner"):
            clock.now += 32
        clock.now += 64
    clock.now += 128
    assert profile.seconds == {"other": 65, "outer": 26, "inner": 36}


def fail(clock: Clock) -> None:
    """Take a second to fail."""
    clock.now += 1
    raise KeyError


def test_a_phase_that_an_error_ends_is_ended(clock):
    with Profile() as profile:
        with pytest.raises(KeyError), phase("first"), phase("second"):
            fail(clock)
        clock.now += 2
    assert profile.seconds == {"other": 2, "first": 0, "second": 1}


def test_an_error_ends_the_profile_itself(clock):
    profile = Profile()
    with pytest.raises(KeyError), profile:
        fail(clock)
    assert Profile.active is None
    assert profile.seconds == {"other": 1}


def test_nothing_is_counted_without_a_profile(clock):
    with Profile() as profile:
        clock.now += 1
    with phase("later"):
        clock.now += 2
    assert profile.seconds == {"other": 1}
    before = phase("before")
    before.__enter__()
    with Profile() as another:
        before.__exit__(None, None, None)
        clock.now += 4
    assert another.seconds == {"other": 4}, "a phase ends where it began to count, or nowhere"


EVERY = {
    "set-up",
    "data",
    "forward and backward",
    "corrections",
    "optimizer",
    "anchors",
    "aggregation",
    "evaluation",
    "checkpoint",
    "other",
}


@pytest.mark.parametrize("executor", ["loop", "stacked"])
def test_the_phases_of_a_run_add_up_to_the_whole(tmp_path, monkeypatch, executor):
    """The clock ticks once whenever it is read, so that no phase takes no time."""
    ticks = itertools.count()
    monkeypatch.setattr(profiling, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    pieces = [Scaffold(), FedFM(strength=1.0, start_round=0)]
    training = Training(clients=4, rounds=2, epochs=1, batch_size=4)
    with Profile() as profile:
        simulate(
            fixtures.make_network("mlp", hidden=[8]), fixtures.make_images(), pieces,
            training=training, partition=Partition("iid"), executor=executor, out=tmp_path / "run",
        )  # fmt: skip
    assert set(profile.seconds) == EVERY
    assert min(profile.seconds.values()) > 0
    assert sum(profile.seconds.values()) == next(ticks) - 1


def test_a_profile_changes_no_result():
    def losses() -> list[float | None]:
        training = Training(clients=4, rounds=2, epochs=1, batch_size=4)
        module, data, piece = fixtures.make_network(), fixtures.make_images(), FedFM(start_round=0)
        result = simulate(
            module, data, piece, partition=Partition("iid"), training=training, executor="stacked"
        )
        return [record.train_loss for record in result.rounds]

    with Profile():
        profiled = losses()
    assert losses() == profiled


# --- The command line -----------------------------------------------------------------------------

RUN = ("run", "digits", *TINY, *sets("rounds=2", "method=fedfm", "fedfm.start_round=1"))


def test_run_with_profile_prints_a_table_and_writes_it_down(command):
    answer = command(*RUN, "--profile", "--out", "run")
    assert answer.code == 0
    seconds = json.loads(Path("run/profile.json").read_text())
    assert set(seconds) == EVERY
    assert min(seconds.values()) >= 0
    shown = dict(re.findall(r"│ ([a-z -]+?) +│ +([\d.]+) │ +[\d.]+ │", answer.out))
    assert shown == {name: f"{value:.3f}" for name, value in seconds.items()}
    percent = [float(x) for x in re.findall(r"│ +([\d.]+) │$", answer.out, re.MULTILINE)]
    assert percent == sorted(percent, reverse=True)
    assert sum(percent) == pytest.approx(100, abs=0.05 * len(percent) + 1e-9)
    assert Profile.active is None


def test_run_without_profile_writes_none(command):
    answer = command(*RUN, "--out", "run")
    assert answer.code == 0
    assert "where the time went" not in answer.out
    assert "profile.json" not in contents(Path("run"))


def test_run_with_seeds_makes_the_folders_of_single_runs(command):
    answer = command(*RUN, *sets("seed=5"), "--seeds", "2", "--out", "both")
    assert answer.code == 0, answer.err
    assert {path.name for path in Path("both").iterdir()} == {"seed-5", "seed-6"}
    assert "fedfm, 4 clients, seed 5  round 2/2" in answer.err
    for seed in (5, 6):
        assert f"files in both/seed-{seed}" in answer.out
        assert command(*RUN, *sets(f"seed={seed}"), "--out", f"one-{seed}").code == 0
        assert timeless(Path(f"both/seed-{seed}")) == timeless(Path(f"one-{seed}"))


def test_without_out_every_seed_has_the_folder_it_would_have_alone(command):
    assert command(*RUN, "--seeds", "2").code == 0
    assert {path.name for path in Path("runs").iterdir()} == {"digits-fedfm-0", "digits-fedfm-1"}
    assert torch.get_num_threads() == 1
