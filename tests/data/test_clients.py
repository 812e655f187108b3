"""Samples that belong to clients: in data sets, given from Python, joined, and dealt."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedfm.core.errors import UserError
from fedfm.data import Dataset, Split, assign, join
from fedfm.data.partition import Partition, deal, divide, tabulate


def inputs_of(n: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, 3, generator=torch.Generator().manual_seed(seed))


def split_of(n: int, clients: list[int] | None = None, seed: int = 0) -> Split:
    owners = None if clients is None else torch.tensor(clients)
    return Split(inputs_of(n, seed), torch.arange(n) % 2, owners)


def data_of(clients: list[int] | None = None, n: int = 12, **options) -> Dataset:
    train = split_of(n, clients)
    names = () if clients is None else ("north", "south", "west")[: max(clients) + 1]
    return Dataset("mine", train, split_of(4, seed=1), ("a", "b"), clients=names, **options)


# --- data sets ------------------------------------------------------------------------------------


def test_sorting_and_choosing_samples_keeps_their_clients():
    clients = [0, 1, 1, 0, 1, 0, 0, 0, 1, 1, 0, 1]
    data = data_of(clients)
    assert data.train.clients is not None
    given, owners = (
        inputs_of(12),
        dict(zip(map(tuple, inputs_of(12).tolist()), clients, strict=True)),
    )
    assert not torch.equal(data.train.inputs, given)
    found = [owners[tuple(row)] for row in data.train.inputs.tolist()]
    assert data.train.clients.tolist() == found
    some = data.train.subset(torch.tensor([3, 1]))
    assert some.clients is not None
    assert some.clients.tolist() == [found[3], found[1]]


def test_positions_say_where_a_sample_stood_before_sorting():
    train = data_of().train
    assert train.positions is not None
    assert torch.equal(inputs_of(12)[train.positions], train.inputs)
    assert train.subset(torch.arange(3)).positions is None
    assert data_of(keep_order=True).train.positions is None


def test_the_digest_of_data_knows_their_clients():
    without, one, other = (
        data_of(clients).digest for clients in (None, [0, 1] * 6, [0] * 6 + [1] * 6)
    )
    assert len({without, one, other}) == 3
    assert data_of([0, 1] * 6).digest == one


@pytest.mark.parametrize(
    ("clients", "names", "message"),
    [
        (torch.tensor([0, 1, 2, 0]), ("x", "y"), r"clients run from 0 to 2.*\b2\b"),
        (torch.tensor([0, 1, 0]), ("x", "y"), r"\b4 samples.*\b3\b"),
        (torch.tensor([0.0, 1.0, 0.0, 1.0]), ("x", "y"), "float32"),
        ([0, 1, 0, 1], ("x", "y"), r"clients.*torch\.Tensor.*list"),
        (None, ("x", "y"), r"names of clients.*Split"),
        (torch.tensor([0, 1, 0, 1]), "xy", "clients must be a list"),
    ],
)
def test_clients_that_do_not_fit_the_samples_are_refused(clients, names, message):
    def make() -> Dataset:
        train = Split(inputs_of(4), torch.arange(4) % 2, clients)
        return Dataset("mine", train, split_of(4), ("a", "b"), clients=names)

    with pytest.raises(UserError, match=message):
        make()


# --- index lists and ids --------------------------------------------------------------------------


@pytest.mark.parametrize("keep_order", [False, True])
def test_indices_mean_samples_in_the_order_in_which_they_were_given(keep_order):
    data = data_of(keep_order=keep_order)
    lists: list[Any] = [[7, 2, 3], np.array([0, 11]), torch.tensor([5])]
    found = assign(data, lists)
    assert found.clients == ("0", "1", "2")
    for shard, wanted in zip(deal(found, 3, own(found), 0), lists, strict=True):
        rows = {tuple(row) for row in found.train.inputs[shard].tolist()}
        assert rows == {tuple(inputs_of(12)[int(index)].tolist()) for index in wanted}
    assert len(found.train) == 6, "samples that no list names are left out"
    assert torch.equal(found.test.inputs, data.test.inputs)


def own(data: Dataset) -> Partition:
    return Partition("own", digest=data.digest)


def test_lists_may_have_names_and_ids_may_be_names_or_tensors():
    data, ids = data_of(), [0, 0, 1, 2] * 3
    named = assign(data, {"north": [0, 1], "south": range(2, 5)})
    assert named.clients == ("north", "south")
    assert named.train.clients is not None
    assert named.train.clients.bincount().tolist() == [2, 3]
    digests = {assign(data, kind(ids)).digest for kind in (list, np.array, torch.tensor)}
    lists = [[i for i in range(12) if ids[i] == client] for client in range(3)]
    assert digests == {assign(data, lists).digest}
    assert assign(data, ["b", "a"] * 6).clients == ("a", "b")
    assert assign(data, np.array([7, 9] * 6)).clients == ("7", "9")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([[0, 1], [1, 2]], r"\b1 training samples.*twice \(1\)"),
        ([[0, 0], [1]], r"twice \(0\)"),
        ([[0, 1], []], "client 1.*empty"),
        ({"north": [0], "south": []}, "client south.*empty"),
        ([[0, 1], [12]], r"client 1.*\b12\b.*0 to 11"),
        ([[0, 1], [-1]], r"client 1.*-1"),
        ([[0.5], [1.0]], "client 0.*float64"),
        ([np.ones(12, bool), np.zeros(12, bool)], "client 0.*bool"),
        ([[0, 1]], "one client.*two"),
        ([0] * 12, "one client.*two"),
        ([0, 1], r"\b12 training samples.*\(2,\)"),
        (np.linspace(0, 1, 12), "float64"),
        (3, r"shape \(\)"),
        ([], r"\(0,\)"),
    ],
)
def test_lists_and_ids_that_make_no_partition_are_refused(given, message):
    with pytest.raises(UserError, match=message):
        assign(data_of(), given)


# --- one data set for each client -----------------------------------------------------------------


def test_joined_clients_keep_their_samples_and_tests():
    north = Dataset("n", split_of(6), split_of(2, seed=1), ("a", "b"))
    south = Dataset("s", split_of(4, seed=2), split_of(3, seed=3), ("b", "a"))
    both = join({"north": north, "south": south})
    assert (both.clients, both.classes) == (("north", "south"), ("a", "b"))
    assert both.train.clients is not None
    assert both.test.clients is not None
    assert both.train.clients.tolist() == [0] * 6 + [1] * 4
    assert both.test.clients.tolist() == [0] * 2 + [1] * 3
    assert torch.equal(both.train.inputs[6:], south.train.inputs)
    assert torch.equal(both.train.labels[6:], 1 - south.train.labels), "their classes are swapped"
    assert tabulate(both, 2, Partition("natural"), 0).sum(1).tolist() == [6, 4]


def test_a_client_may_have_no_test_samples():
    both = join([split_of(4), Dataset("s", split_of(6), split_of(2), ("a", "b"))])
    assert both.clients == ("0", "1")
    assert both.test.clients is not None
    assert both.test.clients.tolist() == [1, 1]


def test_joined_data_are_normalised_by_what_all_have_or_by_all_training_samples():
    north = Dataset("n", split_of(6), split_of(2), ("a", "b"), mean=(2.0,), std=(3.0,))
    south = replace(north, train=split_of(4, seed=2))
    assert join([north, south]).mean == (2.0,)
    other = join([north, replace(south, mean=(1.0,))])
    every = torch.cat([north.train.inputs, south.train.inputs]).double()
    assert other.mean == pytest.approx(every.mean(0).tolist())
    assert other.std == pytest.approx(every.std(0, correction=0).tolist())


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (None, "at least two"),
        (Dataset("s", split_of(4), split_of(4), ("a", "c")), r"classes of 1 and 0.*\bb, c\b"),
        (Split(torch.zeros(4, 5), torch.zeros(4).long()), r"inputs of 1.*\(5,\).*\(3,\)"),
        (Split(torch.zeros(4, 3).byte(), torch.zeros(4).long()), r"inputs of 1.*uint8.*float32"),
    ],
)
def test_clients_that_do_not_fit_together_are_refused(second, message):
    first = Dataset("n", split_of(4), split_of(4), ("a", "b"))
    with pytest.raises(UserError, match=message):
        join([first] if second is None else [first, second])


def test_splits_alone_name_no_classes():
    with pytest.raises(UserError, match=r"Dataset.*classes"):
        join([split_of(4), split_of(4)])


# --- natural partitions ---------------------------------------------------------------------------


def test_natural_clients_hold_their_samples_whatever_the_seed():
    data = data_of([0, 1, 1, 0, 2, 2] * 2)
    for seed in (0, 1):
        shards = deal(data, 3, Partition("natural"), seed)
        assert data.train.clients is not None
        assert [data.train.clients[shard].tolist() for shard in shards] == [
            [k] * 4 for k in range(3)
        ]
        assert all((np.diff(shard) > 0).all() for shard in shards)


@pytest.mark.parametrize(
    ("data", "clients", "message"),
    [
        (data_of(), 2, r"client of each sample.*'mine'.*data\.client"),
        (data_of([0, 1] * 6), 3, r"clients = 3.*\b2 \(north, south\)"),
        (data_of([0, 2] * 6), 3, "no training samples of client south"),
    ],
)
def test_data_without_samples_for_every_client_are_refused(data, clients, message):
    with pytest.raises(UserError, match=message):
        deal(data, clients, Partition("natural"), 0)


def test_a_partition_of_other_lists_is_not_the_recorded_one():
    one, other = (assign(data_of(), lists) for lists in ([[0], [1]], [[0], [2]]))
    assert len(deal(one, 2, own(one), 0)) == 2
    with pytest.raises(UserError, match=r"partition\.file"):
        deal(other, 2, own(one), 0)


def test_a_drawn_partition_forgets_the_natural_clients():
    data = data_of([0, 1] * 6)
    kept, _ = divide(data, 2, Partition("natural"), 0)
    drawn, shards = divide(data, 3, Partition("iid"), 0)
    assert kept is data
    assert (drawn.clients, drawn.train.clients, len(shards)) == ((), None, 3)
    plain = data_of()
    assert divide(plain, 3, Partition("iid"), 0)[0] is plain


def test_dicts_and_token_ids_are_joined_too():
    ids = torch.arange(12).view(4, 3)
    some = Split({"ids": ids, "mask": ids > 2}, torch.arange(4) % 2)
    whole = Dataset("one", some, some, ("a", "b"))
    joined = join({"north": whole, "south": some})
    assert joined.train.inputs["ids"].shape == (8, 3)
    assert joined.train.inputs["mask"].dtype == torch.bool
    floats = Split({"ids": ids.float(), "mask": ids > 2}, torch.arange(4) % 2)
    with pytest.raises(UserError, match=r"\['ids'\] torch.float32.*\['ids'\] torch.int64"):
        join({"north": whole, "south": floats})


def test_clients_with_other_vocabularies_are_not_joined():
    ids = Split(torch.arange(12).view(4, 3), torch.arange(4) % 2)
    words = tuple(map(str, range(13)))
    one, other = (Dataset("d", ids, ids, ("a", "b"), vocabulary=w) for w in (words, words[:-1]))
    assert join({"north": one, "south": one}).vocabulary == words
    with pytest.raises(UserError, match="vocabularies of north and south differ"):
        join({"north": one, "south": other})
