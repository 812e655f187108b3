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
