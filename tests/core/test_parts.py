"""Trees, keyed randomness, the ledger, batches, the validation split and the cohort's choice."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedfm.core import trees
from fedfm.core.errors import UserError
from fedfm.core.ledger import Ledger, Traffic, count_upload
from fedfm.core.rng import generator, torch_seed
from fedfm.data.batches import plan_batches
from fedfm.data.holdout import hold_out
from fedfm.methods import FedAvg
from fedfm.rounds.clients import sum_buffers
from fedfm.verify import fixtures


def test_names_of_layers_may_have_slashes():
    tree = {"a/b": {"~1": torch.ones(1), "~0/": torch.zeros(1)}}
    assert trees.unflatten(trees.flatten(tree)) == tree


def test_integers_are_finite_and_floats_are_looked_at():
    whole = torch.tensor([[1, 2], [3, 4]])
    assert trees.is_finite({"count": whole}).tolist() == [True, True]
    broken = torch.tensor([[1.0, 2.0], [float("nan"), 4.0]])
    assert trees.is_finite({"count": whole, "sum": {"x": broken}}).tolist() == [True, False]


def test_flatten_and_unflatten_are_inverse():
    tree = {"a": {"b.weight": torch.ones(2), "c": {"d": torch.zeros(1)}}, "e": torch.ones(3)}
    flat = trees.flatten(tree)
    assert list(flat) == ["a/b.weight", "a/c/d", "e"]
    assert trees.unflatten(flat) == tree


def test_rows_keep_what_is_shared():
    tree = {"own": torch.arange(3).unsqueeze(1), "shared": torch.zeros(1, 4)}
    part = trees.rows(tree, slice(1, 3))
    assert part["own"].tolist() == [[1], [2]]
    assert part["shared"] is tree["shared"]


def test_buffers_are_summed_by_samples_and_counters_take_the_largest():
    tree = {"mean": torch.tensor([[2.0], [6.0]]), "batches": torch.tensor([3, 7])}
    base = {"mean": torch.tensor([[1.0]]), "batches": torch.tensor([0])}
    found = sum_buffers(tree, base, torch.tensor([1.0, 3.0]))
    assert found["buffers"]["mean"].tolist() == [16.0]
    assert found["counters"]["batches"].item() == 7


def test_finite_finds_the_client_that_is_not():
    tree = {"a": torch.zeros(3, 2), "b": torch.zeros(3), "n": torch.zeros(3, dtype=torch.int64)}
    tree["a"][1, 0] = torch.nan
    tree["b"][2] = torch.inf
    assert trees.is_finite(tree).tolist() == [True, False, False]


def test_randomness_belongs_to_its_key_alone():
    keyed = [generator(0, "a"), generator(1, "a"), generator(0, "b"), generator(0, "a", 0)]
    draws = [each.random() for each in keyed]
    assert len(set(draws)) == 4
    assert generator(0, "a").random() == draws[0]
    assert torch_seed(0, "a") != torch_seed(0, "b")
    assert 0 <= torch_seed(0, "a") < 2**63


def test_randomness_is_the_same_on_every_machine():
    assert generator(3, "batches", 1, 2).integers(1000, size=5).tolist() == [
        924,
        945,
        338,
        609,
        669,
    ]


def test_the_ledger_counts_floats_without_buffers_and_bytes_with_everything():
    ledger = Ledger()
    message = {
        "params": {"w": torch.zeros(5, 2)},
        "buffers": {"mean": torch.zeros(3), "batches": torch.zeros(1, dtype=torch.int64)},
        "fedfm": {"anchors": torch.zeros(2, 2), "seen": torch.zeros(2, dtype=torch.bool)},
    }
    ledger.record_download(message, clients=3)
    ledger.record_handshake(count_upload({"counts": {"n": torch.zeros(3, 4, dtype=torch.int64)}}))
    assert ledger.traffic == Traffic(
        floats_up=0,
        floats_down=3 * (10 + 4),
        bytes_up=3 * 4 * 8,
        bytes_down=3 * (4 * (10 + 3 + 4) + 8 + 2),
        handshakes=1,
    )


@given(st.integers(1, 60), st.integers(1, 20), st.booleans(), st.integers(0, 5))
def test_an_epoch_takes_every_sample_at_most_once_and_drops_less_than_a_batch(n, size, keep, seed):
    indices = np.arange(100, 100 + n)
    made = plan_batches(indices, epochs=1, batch_size=size, keep_last=keep, augmentation=None,
                key=(seed, 0, 0))  # fmt: skip
    batches, taken = made.batches, made.indices
    assert len(set(taken.tolist())) == len(taken)
    assert set(taken.tolist()) <= set(indices.tolist())
    assert all(len(batch) == min(n, size) for batch in batches[:-1])
    dropped = n - len(taken)
    assert dropped == (0 if keep or n < size else n % size)


def test_plans_reshuffle_every_epoch_and_depend_on_round_and_client():
    def batches(round: int, client: int) -> list[list[int]]:
        made = plan_batches(
            np.arange(32),
            epochs=2,
            batch_size=32,
            keep_last=False,
            augmentation=None,
            key=(0, round, client),
        )
        return [batch.tolist() for batch in made.batches]

    first, second = batches(0, 0)
    assert first != second
    assert sorted(first) == sorted(second)
    assert batches(0, 0) == [first, second]
    assert batches(1, 0)[0] != first != batches(0, 1)[0]


@given(st.lists(st.integers(3, 40), min_size=1, max_size=8), st.integers(0, 3))
def test_the_validation_split_holds_out_a_fifth_and_loses_nothing(sizes, seed):
    shards = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    for shard, train, validation in zip(shards, *hold_out(shards, 0.2, seed), strict=True):
        assert sorted([*train, *validation]) == shard.tolist()
        assert abs(len(validation) - 0.2 * len(shard)) <= 0.5


def test_the_validation_split_of_samples_in_order_of_class_has_every_class():
    labels = np.repeat(np.arange(5), 20)
    (training,), (validation,) = hold_out([np.arange(100)], 0.2, 0)
    assert set(labels[validation]) == set(labels[training]) == set(range(5))


@pytest.mark.parametrize(("size", "share", "kind"), [(2, 0.2, "validation"), (1, 0.9, "training")])
def test_a_client_left_without_samples_is_named(size, share, kind):
    shards = [np.arange(20), np.arange(20, 20 + size)]
    with pytest.raises(UserError, match=rf"client 1\b.*\b{size}\b.*{kind}"):
        hold_out(shards, share, 0)


def test_cohorts_have_the_size_asked_for_and_change_from_round_to_round():
    module, data = fixtures.make_network("mlp"), fixtures.make_images()
    fed = fixtures.make_federation(module, data, FedAvg(), participation=0.5)
    cohorts = [tuple(fed.cohort(t)) for t in range(12)]
    assert all(len(set(cohort)) == 2 and list(cohort) == sorted(cohort) for cohort in cohorts)
    assert len(set(cohorts)) > 1
    assert cohorts == [tuple(fed.cohort(t)) for t in range(12)]
    assert len(fixtures.make_federation(module, data, FedAvg(), participation=0.01).cohort(0)) == 1
