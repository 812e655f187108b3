"""`fedfm partition`, `methods`, `data`, `demo` and the help."""

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from fedfm import data
from fedfm.cli import demo
from fedfm.config import load_config
from fedfm.data import partition as partitions
from fedfm.methods import PIECES, FedFMLite
from tests.cli.tools import sets

# --- partition ----------------------------------------------------------------------------------

CHANGES = sets("partition.kind=niid1", "beta=0.3", "clients=5", "seed=4")


def test_a_partition_is_drawn_and_told_in_a_sentence(command):
    answer = command("partition", "digits", *CHANGES, "--out", "pictures/deal.png")
    assert answer.code == 0
    assert answer.out.startswith("digits, niid1, 5 clients, seed 4: ")
    assert "1,438 in all" in answer.out
    assert answer.out.endswith("picture in pictures/deal.png\n")
    assert Path("pictures/deal.png").read_bytes().startswith(b"\x89PNG")


def test_a_partition_for_programs_is_the_table_that_a_run_would_use(command):
    answer = command("partition", "digits", *CHANGES, "--out", "deal.svg", "--format", "json")
    assert answer.code == 0
    found = json.loads(answer.out)
    assert found["picture"] == "deal.svg"
    assert "<svg" in Path("deal.svg").read_text()
    digits, config = data.load("digits"), load_config("digits", CHANGES[1::2])
    labels = digits.train.labels.numpy()
    shards = partitions.deal_labels(labels, 10, 5, config.partition, seed=4)
    expected = [np.bincount(labels[shard], minlength=10).tolist() for shard in shards]
    assert found["counts"] == expected


def test_the_digits_are_dealt_by_default(command):
    answer = command("partition")
    assert answer.code == 0
    assert answer.out.startswith("digits, ")
    assert Path("partition.png").exists()


@pytest.mark.parametrize("name", ["deal.bmp", "deal"])
def test_a_picture_of_another_kind_is_refused(command, tmp_path, name):
    answer = command("partition", "--out", name)
    assert answer.code == 2
    assert "a picture ends in .png or .svg" in answer.err
    assert list(tmp_path.iterdir()) == []


# --- methods ------------------------------------------------------------------------------------


def test_the_methods_for_programs_are_all_pieces_with_their_defaults(command):
    answer = command("methods", "--format", "json")
    assert answer.code == 0
    found = {row["name"]: row for row in json.loads(answer.out)}
    assert list(found) == list(PIECES)
    assert found["fedfm-lite"]["defaults"] == asdict(FedFMLite())
    assert found["fedavg"]["defaults"] == {}
    assert all(row["what"].endswith((".", ").")) for row in found.values())


def test_the_methods_for_people_name_every_setting(command):
    answer = command("methods")
    assert answer.code == 0
    for name, piece in PIECES.items():
        assert name in answer.out
        for setting, value in vars(piece()).items():
            assert f"{setting} = {value}" in answer.out


# --- data ---------------------------------------------------------------------------------------


def test_the_data_for_programs_tell_what_is_missing_where(command):
    archive = Path("files/cifar10/cifar-10-binary.tar.gz")
    archive.parent.mkdir(parents=True)
    archive.touch()
    answer = command("data", "--dir", "files", "--format", "json")
    assert answer.code == 0
    found = {row["name"]: row for row in json.loads(answer.out)}
    assert found.keys() == data.SOURCES.keys()
    assert found["digits"]["present"]
    assert found["cifar10"]["present"]
    assert found["cifar10"]["folder"] == "files/cifar10"
    assert not found["cifar100"]["present"]
    assert found["cifar100"]["missing"] == ["cifar-100-binary.tar.gz"]


def test_the_data_for_people_say_what_is_here(command):
    answer = command("data", "--dir", "files")
    assert answer.code == 0
    for name in data.SOURCES:
        assert name in answer.out
    assert "cifar-100-binary.tar.gz" in answer.out
    assert "files are kept in files (change it with --dir or FEDFM_DATA)" in answer.out


def test_the_folder_of_the_data_can_be_set_in_the_environment(command, monkeypatch):
    monkeypatch.setenv("FEDFM_DATA", "elsewhere")
    assert "files are kept in elsewhere" in command("data").out


# --- demo ---------------------------------------------------------------------------------------


def test_the_demo_compares_the_methods_in_a_table_and_a_picture(command, monkeypatch):
    quick = ["rounds=2", "epochs=1", "model.name=mlp", "model.hidden=[8]"]
    methods = {label: [*given, *quick] for label, given in demo.METHODS.items()}
    monkeypatch.setattr(demo, "METHODS", methods)
    answer = command("demo", "--seeds", "2", "--out", "shown")
    assert answer.code == 0, answer.err
    for label in methods:
        assert label in answer.out
        assert f"{label}, seed 1  round 2/2" in answer.err
    assert Path("shown/demo.png").read_bytes().startswith(b"\x89PNG")
    assert "report in shown/report.html" in answer.out
    assert "fedfm-lite" in Path("shown/report.html").read_text()


# --- help ---------------------------------------------------------------------------------------

OPTIONS = {
    "run": ["CONFIG", "--set", "--out", "--resume", "--format", "digits"],
    "cost": ["--model", "--classes", "--shape", "--option", "--clients", "--rounds", "--format"],
    "partition": ["CONFIG", "--set", "--out", "--format"],
    "methods": ["--format"],
    "data": ["--dir", "--format"],
    "demo": ["--out", "--seeds"],
    "features": ["RUN", "--out", "--points", "--format"],
    "table": ["name", "--only", "--seeds", "--budget", "--jobs", "--quick", "--set", "--results"],
    "reproduce": ["--budget", "--with", "--collect", "--document", "--readme", "--no-run"],
    "merge": ["folders", "--into"],
    "export": ["results", "--out", "--rounds"],
    "report": ["RUNS", "--out", "--title"],
}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_names_every_option(command, name, flag):
    answer = command(name, flag)
    assert answer.code == 0
    assert answer.err == ""
    for option in OPTIONS[name]:
        assert option in answer.out


def test_help_names_every_command(command):
    answer = command("--help")
    assert answer.code == 0
    for name in OPTIONS:
        assert f" {name} " in answer.out


@pytest.mark.parametrize("wrong", [["rnu"], ["run"], ["run", "digits", "--frmat", "json"]])
def test_a_command_line_that_makes_no_sense_is_refused(command, tmp_path, wrong):
    answer = command(*wrong)
    assert answer.code == 2
    assert "Error" in answer.err
    assert "Traceback" not in answer.err
    assert list(tmp_path.iterdir()) == []


def test_the_version(command):
    from fedfm import __version__

    answer = command("--version")
    assert (answer.code, answer.out) == (0, f"fedfm {__version__}\n")
