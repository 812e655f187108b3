"""`fedfm partition`."""

import json
from pathlib import Path

import numpy as np
import pytest

from fedfm import data
from fedfm.config import load_config
from fedfm.data import partition as partitions
from tests.cli.tools import sets

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


@pytest.mark.parametrize("kind", ["dirichlet", "shards", "quantity", "feature"])
def test_every_kind_that_is_drawn_has_a_picture(command, kind):
    answer = command("partition", "digits", *sets(f"kind={kind}", "clients=5"), "--format", "json")
    assert answer.code == 0
    found = json.loads(answer.out)
    assert np.array(found["counts"]).shape == (5, 10)
    assert np.array(found["counts"]).sum() == 1438
    assert Path("partition.png").exists()


def test_natural_and_own_clients_have_their_names_in_the_picture(command):
    rows = [f"{i},{('north', 'south')[i % 2]},{'ab'[i // 2 % 2]}" for i in range(40)]
    Path("sites.csv").write_text("\n".join(["x,site,label", *rows]))
    table = sets("data.name=csv", "data.path=sites.csv")
    natural = sets("data.client=site", "kind=natural")
    Path("own.json").write_text(json.dumps({"north": [0, 2, 4], "south": [1, 3]}))
    own = sets("data.drop=['site']", "kind=own", "file=own.json")
    for changes, sizes in ((natural, [16, 16]), (own, [3, 2])):
        arguments = ["partition", "digits", *table, *changes, "--out", "deal.svg"]
        answer = command(*arguments, "--format", "json")
        assert answer.code == 0
        found = json.loads(answer.out)
        assert found["clients"] == ["north", "south"]
        assert np.array(found["counts"]).sum(1).tolist() == sizes
        assert command(*arguments).out.startswith("csv, ")
        assert "2 clients" in command(*arguments).out
