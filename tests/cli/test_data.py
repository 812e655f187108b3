"""`fedfm data`."""

import json
from pathlib import Path

from fedfm import data


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
