"""`fedfm run`: what it leaves in the folder and what it says."""

import json
import os
import platform
import pty
import subprocess
import sys
import tomllib
from contextlib import suppress
from dataclasses import asdict, fields
from operator import itemgetter
from pathlib import Path

import numpy
import pytest
import torch
from safetensors.torch import load_file

import fedfm
from fedfm import FedFM, Partition, Training, data, models
from fedfm.config import builtin_names, load_config
from fedfm.run.records import RoundRecord
from tests.cli.tools import TINY, sets
from tests.folders import contents, lines, summary, timeless

TRAFFIC = ("floats_up", "floats_down", "bytes_up", "bytes_down", "handshakes")
RUN = (
    "run",
    "digits",
    *TINY,
    *sets("rounds=3", "method=fedfm", "fedfm.strength=2.0", "fedfm.start_round=1"),
)


@pytest.fixture
def folder(command, tmp_path) -> Path:
    """A finished run."""
    assert command(*RUN, "--out", "run").code == 0
    return Path(tmp_path / "run")


def test_a_run_leaves_these_files_and_no_others(folder):
    assert {path.name for path in folder.iterdir()} == {
        "config.toml",
        "machine.json",
        "data.json",
        "rounds.jsonl",
        "rounds.csv",
        "summary.json",
        "model.safetensors",
        "checkpoint",
    }
    assert not list(folder.rglob("*.partial"))


def test_a_folder_can_be_named_to_go_on_with_its_run(command, folder):
    before = contents(folder)
    answer = command("run", str(folder), "--resume")
    assert answer.code == 0, answer.err
    assert f"files in {folder}" in answer.out
    assert contents(folder) == before


# --- config.toml --------------------------------------------------------------------------------


def test_the_config_is_recorded_with_everything_resolved(folder):
    recorded = tomllib.loads((folder / "config.toml").read_text())
    assert recorded["seed"] == 0
    assert recorded["executor"] == "stacked"
    assert recorded["data"] == {"name": "digits"}
    assert recorded["model"] == {"name": "mlp", "hidden": [8], "norm": "none", "head": "linear"}
    assert recorded["method"] == {"fedfm": asdict(FedFM(strength=2.0, start_round=1))}
    optional = {"select_by", "report"}
    assert recorded["training"].keys() == {field.name for field in fields(Training)} - optional
    assert recorded["training"]["rounds"] == 3
    assert recorded["partition"].keys() == {field.name for field in fields(Partition)}


def test_the_recorded_config_makes_the_same_run(command, folder):
    recorded = folder / "config.toml"
    assert load_config(str(recorded)) == load_config("digits", RUN[3::2])
    assert command("run", recorded, "--out", "again").code == 0
    assert timeless(Path("again")) == timeless(folder)


# --- rounds.jsonl, summary.json, model.safetensors ----------------------------------------------


def test_every_round_is_a_line_with_these_fields(folder):
    found = lines(folder)
    assert [line["round"] for line in found] == [1, 2, 3]
    for line in found:
        assert list(line) == [
            "round",
            "val_accuracy",
            "test_accuracy",
            "train_loss",
            "seconds",
            *TRAFFIC,
            "failed",
            "losses",
        ]
        assert 0 <= line["val_accuracy"] <= 1
        assert line["seconds"] > 0


def test_the_summary_tells_the_best_round_by_validation_and_the_totals(folder):
    found, rounds = summary(folder), lines(folder)
    best = max(rounds, key=lambda line: line["val_accuracy"])
    assert (found["method"], found["seed"], found["rounds"]) == ("fedfm", 0, 3)
    assert found["best_round"] == best["round"]
    assert found["val_accuracy"] == best["val_accuracy"]
    assert found["test_accuracy"] == best["test_accuracy"]
    for name in (*TRAFFIC, "seconds"):
        assert found["totals"][name] == sum(line[name] for line in rounds)
    assert found["versions"] == {
        "fedfm": fedfm.__version__,
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "python": platform.python_version(),
    }
    assert found["device"] == "cpu"


def test_the_best_round_is_chosen_by_validation_whatever_the_test_set_says(command):
    contradictions = 0
    for seed in range(4):
        out = Path(f"run-{seed}")
        settings = sets("method=fedavg", "rounds=20", "lr=0.3", f"seed={seed}")
        assert command("run", "digits", *TINY, *settings, "--out", out).code == 0
        by_validation, by_test = (
            max(lines(out), key=itemgetter(name))["round"]
            for name in ("val_accuracy", "test_accuracy")
        )
        assert summary(out)["best_round"] == by_validation
        contradictions += by_validation != by_test
    assert contradictions > 0


@pytest.mark.parametrize("norm", ["none", "batch"])
def test_the_model_kept_is_the_one_whose_accuracy_is_told(command, norm):
    assert command(*RUN, "--set", f"model.norm={norm}", "--out", "run").code == 0
    digits = data.load("digits")
    model = models.build("mlp", shape=digits.shape, classes=10, hidden=[8], norm=norm)
    model.load_state_dict(load_file("run/model.safetensors"), strict=True)
    inputs = (digits.test.inputs - torch.tensor(digits.mean)) / torch.tensor(digits.std)
    with torch.no_grad():
        _, logits = model.eval()(inputs)
    right = int((logits.argmax(1) == digits.test.labels).sum())
    assert right / len(digits.test) == summary(Path("run"))["test_accuracy"]


def test_the_seed_decides_the_run(command):
    for name, seed in (("one", 1), ("same", 1), ("other", 2)):
        assert command(*RUN, "--set", f"seed={seed}", "--out", name).code == 0
    assert timeless(Path("one")) == timeless(Path("same"))
    assert (
        contents(Path("one"))["model.safetensors"] != contents(Path("other"))["model.safetensors"]
    )


# --- Where configs come from and runs go --------------------------------------------------------


def test_a_built_in_config_runs_by_name_into_a_folder_named_after_it(command):
    answer = command(*RUN, "--set", "seed=7")
    assert answer.code == 0
    assert summary(Path("runs/digits-fedfm-7"))["seed"] == 7
    assert "files in runs/digits-fedfm-7" in answer.out


def test_a_file_is_a_config_and_settings_on_the_command_line_win(command):
    Path("mine.toml").write_text(
        """
        method = "fedavg"
        seed = 5
        [model]
        name = "mlp"
        hidden = [8]
        [training]
        clients = 4
        rounds = 9
        epochs = 1
        """
    )
    answer = command("run", "mine.toml", *sets("rounds=2", "lr=0.05"), "--format", "json")
    assert answer.code == 0
    assert json.loads(answer.out)["folder"] == "runs/mine-fedavg-5"
    assert len(lines(Path("runs/mine-fedavg-5"))) == 2
    recorded = tomllib.loads(Path("runs/mine-fedavg-5/config.toml").read_text())
    assert recorded["training"]["lr"] == 0.05


def test_the_built_in_configs_are_the_papers_data_and_the_digits():
    assert {"digits", "fashion-mnist", "cifar10", "cifar100", "cinic10"} <= set(builtin_names())


# --- What it says -------------------------------------------------------------------------------


def test_for_programs_standard_output_is_the_summary_alone(command):
    answer = command(*RUN, "--out", "run", "--format", "json")
    assert answer.code == 0
    assert json.loads(answer.out) == summary(Path("run")) | {"folder": "run"}


def test_a_profile_does_not_disturb_programs(command):
    answer = command(*RUN, "--out", "run", "--profile", "--format", "json")
    assert json.loads(answer.out)["folder"] == "run"
    assert json.loads(Path("run/profile.json").read_text())["set-up"] > 0


def test_for_people_the_end_is_the_accuracy_the_cost_and_the_folder(command):
    answer = command(*RUN, "--out", "run")
    found = summary(Path("run"))
    assert f"test accuracy {100 * found['test_accuracy']:.2f}%" in answer.out
    assert f"(of round {found['best_round']}, validation " in answer.out
    assert f"sent {found['totals']['floats_up']:,} floats up" in answer.out
    assert answer.out.endswith("files in run\n")


def test_without_a_terminal_every_round_is_a_plain_line_on_standard_error(command):
    answer = command(*RUN, "--out", "run")
    said = answer.err.splitlines()
    assert len(said) == 3
    for line, record in zip(said, lines(Path("run")), strict=True):
        shown = RoundRecord(**record)
        assert line.startswith(
            f"fedfm, 4 clients  round {shown.round}/3  loss {shown.train_loss:.4f}"
        )
        assert f"test {100 * shown.test_accuracy:.2f}%" in line
    assert "\x1b" not in answer.err


def on_a_terminal(*arguments: str) -> tuple[int, str]:
    """`fedfm ARGUMENTS` as a process on a pseudo-terminal: its exit code and what was seen."""
    ours, theirs = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "120", "OMP_NUM_THREADS": "1"}
    program = [sys.executable, "-W", "error", "-c", "from fedfm.cli import main; main()"]
    with subprocess.Popen(
        [*program, *arguments], stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    ) as process:
        os.close(theirs)
        seen = b""
        with suppress(OSError):  # how Linux says that nobody is left on the other side
            while some := os.read(ours, 4096):
                seen += some
    os.close(ours)
    return process.returncode, seen.decode()


def test_on_a_terminal_a_live_display_shows_the_rounds(tmp_path):
    code, seen = on_a_terminal(*RUN, "--out", str(tmp_path / "run"))
    assert code == 0, seen
    last = lines(tmp_path / "run")[-1]
    assert "3/3" in seen
    assert f"test {100 * last['test_accuracy']:.2f}%" in seen
    assert "\x1b[" in seen, "the line is drawn again and again"
    assert "round 1/3" not in seen, "plain lines are for pipes"
    assert "files in" in seen
