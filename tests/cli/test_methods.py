"""`fedfm methods`."""

import json
from dataclasses import asdict

import pytest

from fedfm.methods import PIECES, FedFMLite

pytestmark = pytest.mark.usefixtures("measure_once")


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
