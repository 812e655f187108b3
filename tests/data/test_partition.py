import hashlib
import itertools
import time

import numpy as np
import pytest
from hypothesis import assume, given, reject, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from fedfm.core.errors import UserError
from fedfm.data.partition import Kind, Partition, count_classes, deal_labels, dirichlet
from fedfm.data.partition.count_tables import Ints

KINDS: tuple[Kind, ...] = (
    *("iid", "niid1", "niid2", "niid3"),
    *("dirichlet", "shards", "quantity", "feature"),
)
CLASS_SIZES = st.lists(st.integers(0, 60), min_size=1, max_size=8).filter(any)
SEEDS = st.integers(0, 2**40)
quick = settings(max_examples=80, deadline=None)


class OneForAll(np.random.Generator):
    """Gives everything to the first of those that share."""

    def dirichlet(self, alpha, size=None):
        return np.tile(np.eye(len(alpha))[0], (size, 1))


def labels_of(sizes: list[int]) -> Ints:
    """Labels with `sizes[c]` samples of class c, in no tidy order."""
    labels = np.repeat(np.arange(len(sizes)), sizes)
    return np.random.default_rng(0).permutation(labels)


def table_of(sizes: list[int], clients: int, partition: Partition, seed: int = 0) -> Ints:
    """Split and count, after showing that the shards are sorted, disjoint, typed and repeatable."""
    labels = labels_of(sizes)
    shards = deal_labels(labels, len(sizes), clients, partition, seed)
    again = deal_labels(labels, len(sizes), clients, partition, seed)
    assert len(shards) == clients
    used = np.concatenate(shards)
    assert len(np.unique(used)) == len(used)
    for shard, same in zip(shards, again, strict=True):
        assert shard.dtype == np.int64
        assert (np.diff(shard) > 0).all()
        assert np.array_equal(shard, same)
    return count_classes(labels, len(sizes), shards)


def assert_all_used(table: Ints, sizes: list[int]) -> None:
    assert table.sum(0).tolist() == sizes


def assert_equal_clients(table: Ints) -> None:
    assert np.ptp(table.sum(1)) <= 1


# --- what holds for any data ----------------------------------------------------------------------


@quick
@given(CLASS_SIZES, st.integers(1, 30), SEEDS)
def test_iid_deals_everything_evenly(sizes, clients, seed):
    assume(clients <= sum(sizes))
    table = table_of(sizes, clients, Partition("iid"), seed)
    assert_all_used(table, sizes)
    assert_equal_clients(table)


@quick
@given(CLASS_SIZES, st.integers(1, 8), st.floats(0.1, 10), st.integers(1, 4), SEEDS)
def test_niid1_deals_everything_and_keeps_its_promises(sizes, clients, beta, least, seed):
    assume(2 * clients * least <= sum(sizes))
    try:
        table = table_of(sizes, clients, Partition(beta=beta, min_samples=least), seed)
    except UserError:
        reject()
    assert_all_used(table, sizes)
    assert table.sum(1).min() >= least
    before = table.cumsum(1) - table
    assert (before[table > 0] * clients < sum(sizes)).all()  # who has N/K gets no more


@quick
@given(CLASS_SIZES, st.integers(1, 20), st.sampled_from([1.0, 2.5, 23 / 3, 100.0, 1e6]), SEEDS)
def test_niid2_deals_everything_to_equal_clients(sizes, clients, dominance, seed):
    assume(clients <= sum(sizes))
    table = table_of(sizes, clients, Partition("niid2", dominance=dominance), seed)
    assert_all_used(table, sizes)
    assert_equal_clients(table)


def can_be_met(held: np.ndarray, sizes: np.ndarray) -> bool:
    """Whether equal clients can use up all classes, by the capacities of all cuts."""
    clients = len(held)
    least, extra = divmod(int(sizes.sum()), clients)
    return all(
        sizes[held[list(group)].any(0)].sum() + least * rest + min(extra, rest) >= sizes.sum()
        for size in range(clients + 1)
        for group in itertools.combinations(range(clients), size)
        for rest in [clients - size]
    )


@quick
@given(CLASS_SIZES, st.integers(1, 7), st.integers(0, 7), SEEDS)
def test_niid3_uses_everything_if_it_can_and_else_equal_cells(sizes, clients, missing, seed):
    classes = len(sizes)
    assume(clients <= sum(sizes) and missing < classes)
    held = np.array(
        [[(c - k) % classes < classes - missing for c in range(classes)] for k in range(clients)]
    )
    try:
        table = table_of(sizes, clients, Partition("niid3", missing=missing), seed)
    except UserError:
        filled = held[:, np.array(sizes) > 0]
        scarce = (np.array(sizes) < held.sum(0)) & (np.array(sizes) > 0)
        assert not filled.any(0).all() or not filled.any(1).all() or scarce.any()
        return
    assert (table[~held] == 0).all()
    if can_be_met(held, np.array(sizes)):
        assert_all_used(table, sizes)
        assert_equal_clients(table)
    else:
        cells = held & (np.array(sizes) > 0)
        most = min(n // int(h) for n, h in zip(sizes, cells.sum(0), strict=True) if n)
        assert np.array_equal(table, np.where(cells, most, 0))


@pytest.mark.parametrize("kind", KINDS)
def test_another_seed_gives_another_split(kind):
    labels = labels_of([50, 60, 70])
    first, second = (deal_labels(labels, 3, 3, Partition(kind), seed) for seed in (1, 2))
    assert not all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def test_the_labels_may_have_any_whole_number_type():
    labels = labels_of([50, 60, 70])
    for kind, dtype in itertools.product(KINDS, (np.uint8, np.int32, np.uint64)):
        shards = deal_labels(labels.astype(dtype), 3, 3, Partition(kind), 0)
        expected = deal_labels(labels, 3, 3, Partition(kind), 0)
        assert all(map(np.array_equal, shards, expected))


@quick
@given(CLASS_SIZES, st.integers(1, 30), st.floats(0.01, 100), SEEDS)
def test_dirichlet_mixtures_have_equal_sizes_and_use_everything(sizes, clients, beta, seed):
    assume(clients <= sum(sizes))
    table = table_of(sizes, clients, Partition("dirichlet", beta=beta), seed)
    assert_all_used(table, sizes)
    assert_equal_clients(table)


@quick
@given(CLASS_SIZES, st.integers(1, 30), st.floats(0.01, 100), SEEDS)
def test_refilled_mixtures_have_equal_sizes_and_no_class_without_samples(
    sizes, clients, beta, seed
):
    assume(clients <= sum(sizes))
    labels, partition = labels_of(sizes), Partition("dirichlet", beta=beta, refill=True)
    shards = deal_labels(labels, len(sizes), clients, partition, seed)
    table = count_classes(labels, len(sizes), shards)
    assert_equal_clients(table)
    assert table.sum() == sum(sizes)
    for client, shard in enumerate(shards):
        assert (np.diff(shard) >= 0).all()
        _, copies = np.unique(shard, return_counts=True)
        for label in labels[np.unique(shard)[copies > 1]]:
            assert table[client, label] > sizes[label], "a sample comes twice only if it must"


@quick
@given(CLASS_SIZES, st.integers(1, 30), st.integers(1, 5), SEEDS)
def test_shards_are_equal_pieces_of_the_sorted_samples(sizes, clients, shards, seed):
    assume(clients * shards <= sum(sizes))
    table = table_of(sizes, clients, Partition("shards", shards=shards), seed)
    assert_all_used(table, sizes)
    assert np.ptp(table.sum(1)) <= shards


@quick
@given(CLASS_SIZES, st.integers(1, 6), st.floats(0.3, 100), SEEDS)
def test_quantities_differ_and_everything_is_used(sizes, clients, beta, seed):
    partition = Partition("quantity", beta=beta, min_samples=2)
    try:
        table = table_of(sizes, clients, partition, seed)
    except UserError:
        reject()
    assert_all_used(table, sizes)
    assert table.sum(1).min() >= 2


# --- exact tables ---------------------------------------------------------------------------------


def test_niid2_of_cifar10():
    table = table_of([5000] * 10, 10, Partition("niid2"))
    assert np.array_equal(table, np.where(np.eye(10) == 1, 2300, 300))


def test_niid2_of_cinic10():
    table = table_of([9000] * 10, 10, Partition("niid2", dominance=9))
    assert np.array_equal(table, np.where(np.eye(10) == 1, 4500, 500))


def test_niid2_of_cifar100():
    table = table_of([500] * 100, 10, Partition("niid2"))
    dominant = np.repeat(np.eye(10), 10, axis=1) == 1
    assert np.array_equal(table, np.where(dominant, 230, 30))


def test_niid2_with_more_clients_than_classes_shares_the_dominant_classes():
    table = table_of([5000] * 10, 20, Partition("niid2"))
    dominant = np.repeat(np.eye(10), 2, axis=0) == 1
    assert np.array_equal(table, np.where(dominant, 1150, 150))


def test_niid2_of_unequal_classes_keeps_the_odds():
    table = table_of([20_000, 50_000, 90_000], 3, Partition("niid2", dominance=5))
    for a, b in itertools.combinations(range(3), 2):
        odds = table[a, a] * table[b, b] / (table[a, b] * table[b, a])
        assert odds == pytest.approx(25, rel=0.01)


def test_niid2_rounds_without_blocks_of_like_clients():
    table = table_of([500] * 100, 1000, Partition("niid2"))
    assert set(np.unique(table)) == {0, 1, 3, 4}
    likeness = np.corrcoef(np.minimum(table[:500:10], 1))
    assert np.abs(likeness[~np.eye(50, dtype=bool)]).max() < 0.6


def test_niid3_of_cifar10():
    assert np.array_equal(
        table_of([5000] * 10, 10, Partition("niid3", missing=5)),
        [[1000 * ((c - k) % 10 < 5) for c in range(10)] for k in range(10)],
    )
    table = table_of([5000] * 10, 10, Partition("niid3"))
    assert np.array_equal(table == 0, np.roll(np.eye(10), -1, axis=1) == 1)
    assert set(table[table > 0]) == {555, 556}
    assert (table.sum(1) == 5000).all()


def test_niid3_uses_everything_when_only_uneven_rounding_allows_it():
    table = table_of([10, 11, 10], 3, Partition("niid3", missing=2))
    assert np.array_equal(table, np.diag([10, 11, 10]))


def test_niid3_leaves_samples_unused_when_the_sizes_cannot_be_met():
    table = table_of([100, 100, 100], 4, Partition("niid3", missing=2))
    assert np.array_equal(table, 50 * np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 0, 0]]))


def test_niid1_is_nearly_even_for_a_huge_beta():
    assert np.ptp(table_of([500] * 4, 5, Partition(beta=1e7))) <= 4
    assert np.ptp(table_of([500] * 4, 5, Partition(beta=1e308))) <= 1  # all shares vanish


def test_niid1_is_more_uneven_for_a_smaller_beta():
    def spread(beta: float) -> float:
        return float(table_of([1000] * 10, 10, Partition(beta=beta)).std())

    assert spread(0.1) > spread(0.5) > spread(5) > spread(100)


def test_niid1_gives_a_full_client_nothing_even_if_it_alone_was_drawn():
    rng = OneForAll(np.random.PCG64(0))
    table = dirichlet.draw_shares(np.array([40, 40, 40]), 3, 0.5, rng)
    assert table.tolist() == [[40, 0, 0], [0, 20, 20], [0, 20, 20]]


def test_counts():
    labels = np.array([0, 2, 2, 0, 1])
    table = count_classes(labels, 4, [np.array([0, 1, 2]), np.array([3]), np.array([], np.int64)])
    assert table.tolist() == [[1, 0, 2, 0], [1, 0, 0, 0], [0, 0, 0, 0]]


def test_shards_of_whole_classes_give_every_client_two_of_them():
    table = table_of([50] * 10, 5, Partition("shards"))
    assert sorted(table.sum(1)) == [100] * 5
    assert set(table.flatten()) == {0, 50}
    halves = table_of([50] * 10, 10, Partition("shards"))
    assert set(halves.flatten()) <= {0, 25, 50}, "two pieces may be of one class"


def test_small_beta_gives_few_classes_and_large_beta_the_whole_mixture():
    for refill in (False, True):
        labels = labels_of([500] * 10)
        tables = {}
        for beta in (0.05, 1e4, 1e308):
            partition = Partition("dirichlet", beta=beta, refill=refill)
            shards = deal_labels(labels, 10, 10, partition, 0)
            tables[beta] = count_classes(labels, 10, shards)
        assert np.median(tables[0.05].max(1)) > 250
        assert abs(tables[1e4] - 50).max() < 40
        assert abs(tables[1e308] - 50).max() < 40


def test_without_refilling_the_last_client_gets_what_is_left():
    rng = OneForAll(np.random.PCG64(0))
    table = dirichlet.mix_classes(np.array([30, 30, 30]), 3, Partition("dirichlet"), rng)
    assert table[0].tolist() == [30, 0, 0]
    assert table[1:, 0].tolist() == [0, 0]
    assert table.sum(0).tolist() == table.sum(1).tolist() == [30, 30, 30]


def test_refilling_repeats_samples_and_leaves_others_out():
    labels = labels_of([500] * 10)
    shards = deal_labels(labels, 10, 10, Partition("dirichlet", beta=0.05, refill=True), 0)
    used, copies = np.unique(np.concatenate(shards), return_counts=True)
    assert copies.max() > 1
    assert len(used) < len(labels)


def test_quantities_are_uneven_while_classes_are_alike():
    table = table_of([1000] * 4, 5, Partition("quantity", beta=0.5))
    assert table.sum(1).max() > 3 * table.sum(1).min()
    shares = table[table.sum(1) > 200] / table.sum(1, keepdims=True)[table.sum(1) > 200]
    assert abs(shares - 0.25).max() < 0.12


# --- majority -------------------------------------------------------------------------------------


def test_half_of_a_clients_samples_are_of_its_own_class():
    """The paper's setting: 5,000 of CIFAR-10, 2,500 airplanes or cars, 2,500 others."""
    table = table_of([5000] * 10, 2, Partition("majority"))
    assert table.tolist() == [
        [2500, 278, 278, 278, 278, 278, 278, 278, 277, 277],
        [277, 2500, 278, 278, 278, 278, 278, 278, 278, 277],
    ]
    assert table_of([90] * 3, 3, Partition("majority", size=10, share=0.2)).tolist() == [
        [2, 4, 4],
        [4, 2, 4],
        [4, 4, 2],
    ]
    assert table_of([50], 2, Partition("majority", size=20)).tolist() == [[20], [20]]


def test_a_majority_that_a_class_cannot_give_is_refused():
    refused(r"class 0 has 5 .* 2 clients .* need 8", [5, 9], 2, Partition("majority", size=8))


# --- the same on every machine --------------------------------------------------------------------

DIGESTS = {
    "iid": "971a6b7caf43772248d5473e2b9b1f2675210446bc31f47af9bf3510a5ca499d",
    "niid1": "b58aade12218ec6f298d5f774b4eb43abf76a8d7fdb74521ad6d83f91be38ee2",
    "niid2": "1d2b8f119ca3e5b50720acd5d1fb291f23a4981d5404fb7c02799e3bc83ffb3a",
    "niid3": "cfa183b75c63fc1f5bce071759a0ab4332065ff8224e57ac77d2b526a81f53cb",
    "dirichlet": "6f9a2e96f31deca11ecd6900d5883b25655290cfc9415ea4c73cdf239e064e2a",
    "shards": "5d2f60bbe5de3090b0556bbfa33664a570808fe38cc1b25fdf9d56f9ca31bf1c",
    "quantity": "1129c5c3d6069220f959590bd27b26972f9370c267433a24c82eb909827bfb8a",
    "feature": "971a6b7caf43772248d5473e2b9b1f2675210446bc31f47af9bf3510a5ca499d",
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_split_is_the_same_on_every_machine(kind):
    labels = np.arange(1003) % 10 % 7
    shards = deal_labels(labels, 7, 6, Partition(kind, missing=2), 2026)
    digest = hashlib.sha256(b"".join(shard.astype("<i8").tobytes() for shard in shards))
    assert digest.hexdigest() == DIGESTS[kind]


def test_speed():
    cases = [
        ([5000] * 10, 100, Partition("niid1")),
        ([9000] * 10, 10, Partition("niid2")),
        ([5000] * 10, 10_000, Partition("iid")),
    ]
    deal_labels(
        labels_of([10, 10]), 2, 2, Partition("niid2"), 0
    )  # the import of scipy does not count
    for sizes, clients, partition in cases:
        labels = labels_of(sizes)
        start = time.perf_counter()
        deal_labels(labels, 10, clients, partition, 0)
        assert time.perf_counter() - start < 1


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("kind", "nid1", r"kind 'nid1': did you mean 'niid1'\?"),
        ("beta", 0.0, r"beta.*\b0\b.*\b0\b"),
        ("beta", float("nan"), r"beta.*\b0\b.*nan"),
        ("beta", float("inf"), r"beta.*\b0\b.*inf"),
        ("min_samples", 0, r"min_samples.*\b1\b.*\b0\b"),
        ("dominance", 0.5, r"dominance.*\b1\b.*0\.5"),
        ("dominance", float("nan"), r"dominance.*\b1\b.*nan"),
        ("missing", -1, r"missing.*\b0\b.*-1"),
        ("shards", 0, r"shards.*\b1\b.*\b0\b"),
        ("size", 0, r"size.*\b1\b.*\b0\b"),
        ("share", 1.5, r"share.*\b0\b.*1\.5"),
        ("severity", -1.0, r"severity.*\b0\b.*-1"),
        ("severity", float("nan"), r"severity.*\b0\b.*nan"),
        ("transform", "rotate", r"transform 'rotate': did you mean 'rotation'\?"),
    ],
)
def test_a_bad_field_is_refused(field, value, message):
    with pytest.raises(UserError, match=message):
        Partition(**{field: value})


def test_pydantic_reads_a_partition_and_reports_our_message():
    reader = TypeAdapter(Partition)
    assert reader.validate_python({"kind": "niid2", "dominance": 9}) == Partition(
        "niid2", dominance=9.0
    )
    with pytest.raises(ValidationError, match=r"Value error, beta.*\b0\b.*-1"):
        reader.validate_python({"beta": -1})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("labels", "classes", "clients", "message"),
    [
        ([0, 1, 2], 3, 0, r"\b1\b.*clients.*\b0\b"),
        ([0, 1, 2], 3, 4, r"\b4 clients.*\b3 samples.*\b3\b"),
        ([], 3, 1, r"\b1 clients.*\b0 samples"),
        ([0, 1, 3], 3, 2, r"labels.*\b0\b.*\b3\b.*\b3 classes"),
        ([0, 1, -1], 3, 2, r"labels.*-1\b.*\b1\b.*\b3 classes"),
        ([0.0, 1.0, 2.0], 3, 2, "labels.*float64"),
        ([[0, 1], [2, 0]], 3, 2, r"labels.*\(2, 2\)"),
    ],
)
def test_bad_labels_and_clients_are_refused(kind, labels, classes, clients, message):
    array = np.array(labels, None if labels else np.int64)
    with pytest.raises(UserError, match=message):
        deal_labels(array, classes, clients, Partition(kind), 0)


def partition3(missing: int) -> Partition:
    return Partition("niid3", missing=missing)


def refused(message: str, sizes: list[int], clients: int, partition: Partition) -> None:
    with pytest.raises(UserError, match=message):
        deal_labels(labels_of(sizes), len(sizes), clients, partition, 0)


def test_niid1_refuses_more_than_there_is():
    refused(r"\b30\b.*\b29\b", [10, 19], 3, Partition())


def test_niid1_gives_up_with_advice():
    advice = r"0\.05.*\b10\b.*:.*beta.*clients.*min_samples"
    refused(advice, [50, 50], 10, Partition(beta=0.05))


def test_shards_need_a_sample_each():
    refused(r"\b5 clients.*\b10 samples.*\b9\b", [9], 5, Partition("shards"))


def test_quantities_refuse_more_than_there_is():
    refused(r"\b30\b.*\b29\b", [10, 19], 3, Partition("quantity"))


def test_niid3_refuses_to_miss_every_class():
    refused(r"missing.*\b2\b.*\b2 classes.*\b1\b", [9, 9], 2, partition3(2))


def test_niid3_names_the_classes_nobody_holds():
    message = r"class 3, 4\b.*\b4 clients.*missing.*\b1\b"
    refused(message, [9] * 5, 2, partition3(3))


def test_niid3_does_not_mind_a_class_without_samples_that_nobody_holds():
    assert table_of([9, 18, 9, 0], 2, partition3(2)).tolist() == [[9, 9, 0, 0], [0, 9, 9, 0]]


def test_niid3_refuses_a_class_too_small_for_its_clients():
    refused(r"class 0\b.*\b1 samples.*\b2 clients", [1, 1, 90, 90], 4, partition3(2))


def test_niid3_refuses_clients_without_samples():
    refused(r"clients 2\b.*samples", [9, 9, 0], 3, partition3(2))
