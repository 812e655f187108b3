"""Results are known by what a run computes, whatever keys and names come later."""

from pathlib import Path

import pytest

from fedfm.config import load_config
from fedfm.grid.identity import digest, extract_identity
from fedfm.grid.store import Store

DIGESTS = {
    "cifar10": "c4bc3a3e11f0",
    "cifar100": "199e9106aa8c",
    "cinic10": "b7cbc7b1b7f3",
    "fashion-mnist": "a2ac52796d24",
    "digits": "905aa567a16f",
    "digits method=fedavg": "cd3698a6d17a",
    "digits method=fedavgm": "e1a9294bdf96",
    "digits method=fedprox": "917b2a13990f",
    "digits method=scaffold": "2d5ae9d57dc5",
    "digits method=feddyn": "0f8e5a8c601c",
    "digits method=fednova": "fbb119e8a281",
    "digits method=moon": "7ee3735a8a2e",
    "digits method=fedproto": "a18e0bfd56a7",
    "digits method=fedfm": "905aa567a16f",
    "digits method=fedfm-lite": "cc1a02e638d8",
    "digits privacy.noise=2.0": "b84411fc9857",
    "digits lr=0.5 clients=20": "5f878abfd07c",
}
"""Digests as the first version of the store wrote them. Never change one: results would be lost."""


@pytest.mark.parametrize("run", DIGESTS)
def test_a_digest_stays_what_it_was(run):
    name, *overrides = run.split()
    assert digest(load_config(name, overrides).as_toml()) == DIGESTS[run]


def test_stored_results_are_known_by_the_name_of_their_folder():
    stored = Store(Path(__file__).parents[2] / "results" / "cifar10").summaries()
    assert len(stored) > 100
    assert all(each.folder == f"runs/{each.digest}-{each.seed}" for each in stored)


def test_keys_that_came_later_count_only_where_they_are_not_at_their_default():
    config = load_config("digits").as_toml()
    later = config | {"model": config["model"] | {"norm": "group"}}
    assert digest(later) != digest(config)
    scaled = config | {"data": config["data"] | {"mean": [8.0], "std": [6.0]}}
    assert digest(scaled) != digest(config)


def test_a_method_that_nobody_knows_here_keeps_all_its_settings():
    config = load_config("digits").as_toml() | {"method": {"theirs": {"gamma": 0.5}}}
    assert extract_identity(config)["method"] == {"theirs": {"gamma": 0.5}}
