"""Runs whose clients are given: by the data, by index lists, by one data set for each."""

import tomllib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedfm import FedAvg, Partition, Training, UserError, simulate, simulate_seeds
from fedfm.data import Dataset, assign, join, load

DIGITS = load("digits")
SHORT = Training(rounds=2, epochs=1)
LISTS = [range(100), range(200, 500), range(500, 600)]


def run(data="digits", **options):
    settings = {"training": SHORT, "executor": "stacked", **options}
    return simulate("mlp", data, FedAvg(), **settings)


def params(result) -> dict[str, torch.Tensor]:
    return dict(result.best.model.params)


def same(one, other) -> bool:
    return all(torch.equal(params(one)[name], params(other)[name]) for name in params(one))


def recorded(folder) -> dict[str, dict[str, object]]:
    return tomllib.loads((folder / "config.toml").read_text())


def part(clients: torch.Tensor, client: int) -> Dataset:
    return replace(DIGITS, train=DIGITS.train.subset(clients == client))


def test_lists_ids_and_assigned_data_give_one_result():
    ids = np.arange(len(DIGITS.train)) % 3
    lists = [np.flatnonzero(ids == client) for client in range(3)]
    natural = run(assign(DIGITS, ids), partition=Partition("natural"))
    assert len(natural.best.client_accuracies) == 3
    for partition in (ids, torch.from_numpy(ids), ids.tolist(), lists):
        assert same(run(partition=partition), natural)
    assert not same(run(partition=(ids + (np.arange(len(ids)) < 9)) % 3), natural)


def test_one_data_set_for_each_client_makes_natural_clients():
    clients = torch.arange(len(DIGITS.train)) % 3
    parts = {name: part(clients, k) for k, name in enumerate(("north", "south", "west"))}
    result = run(parts)
    assert len(result.best.client_accuracies) == 3
    assert same(run([*parts.values()]), result)
    assert same(run(join(parts), partition={"kind": "natural"}), result)
    assert len(run(parts, partition=Partition("iid")).best.client_accuracies) == 10


def test_the_record_says_what_the_partition_was(tmp_path):
    run(partition=LISTS, out=tmp_path / "run")
    config = recorded(tmp_path / "run")
    assert config["training"]["clients"] == 3
    assert config["partition"]["kind"] == "own"
    assert config["partition"]["digest"] == assign(DIGITS, LISTS).digest
    assert config["data"] == {"name": "digits"}
    run(partition=LISTS, out=tmp_path / "run", resume=True)
    for other in ([*LISTS[:2], range(500, 601)], LISTS[:2]):
        with pytest.raises(UserError, match=r"partition\.digest"):
            run(partition=other, out=tmp_path / "run", resume=True)


def test_seeds_share_a_given_partition():
    options: dict[str, Any] = {"training": SHORT, "executor": "stacked", "seeds": [0, 1]}
    both = simulate_seeds("mlp", "digits", FedAvg(), partition=LISTS, **options)
    assert [len(result.best.client_accuracies) for result in both] == [3, 3]
    for result in both:
        alone = run(partition=LISTS, seed=result.seed)
        torch.testing.assert_close(params(result), params(alone))


def test_seeds_of_changed_inputs_run_apart(tmp_path):
    skewed = Partition("feature", transform="noise")
    options: dict[str, Any] = {"training": SHORT, "executor": "stacked", "seeds": [0, 1]}
    both = simulate_seeds("mlp", "digits", FedAvg(), partition=skewed, **options)
    for result in both:
        assert same(result, run(partition=skewed, seed=result.seed))
    assert not same(both[0], run(partition=Partition("iid")))


@pytest.mark.parametrize(
    ("partition", "message"),
    [
        ([[0, 1], [1, 2]], "twice"),
        ([[0, 1], []], "empty"),
        ("iidd", "partition"),
        ({"knd": "iid"}, "'knd'"),
        (3, "index lists"),
        ([[0], range(1, 50)], "client 0.*none for validation"),
    ],
)
def test_what_is_no_partition_is_refused_and_leaves_nothing(tmp_path, partition, message):
    with pytest.raises(UserError, match=message):
        run(partition=partition, out=tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_another_number_of_clients_is_refused(tmp_path):
    few = replace(SHORT, clients=4)
    with pytest.raises(UserError, match=r"clients = 4.*\b3\b"):
        run(partition=LISTS, training=few, out=tmp_path / "run")
    assert list(tmp_path.iterdir()) == []
    assert len(run(partition=LISTS, training=replace(SHORT, clients=3)).rounds) == 2


def test_a_kind_may_be_given_by_its_name():
    few = {"clients": 3, "rounds": 1, "epochs": 1}
    named, table = (
        simulate("mlp", "digits", "fedavg", partition=given, training=few, executor="loop")
        for given in ("iid", {"kind": "iid"})
    )
    assert named.test_accuracy == table.test_accuracy
    with pytest.raises(UserError, match="'iid'"):
        simulate("mlp", "digits", "fedavg", partition="iidd", training=few)
