"""What clients agree on: by name, by majority, and never by trusting what they say."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from fedfm import __version__
from fedfm.config import parse
from fedfm.core.errors import UserError
from fedfm.core.trees import Tree
from fedfm.data.dataset import Dataset
from fedfm.data.preprocessing import channel_statistics
from fedfm.data.split import Split
from fedfm.deploy.agreement import Agreement, Introduction, apply_agreement, introduce
from fedfm.deploy.checks import check_deployable
from fedfm.deploy.normalisation import (
    compute_declared_moments,
    compute_moments,
    compute_normalisation,
)
from fedfm.deploy.server.introductions import agree, explain_misfit

GREY, COLOUR = (1, 8, 8), (3, 8, 8)


def told(name, classes="ab", shape=GREY, dtype="uint8", columns=()) -> Introduction:
    return Introduction(
        name=name, classes=tuple(classes), shape=shape, dtype=dtype, columns=columns
    )


def dataset(inputs, labels=None, classes=("a", "b"), **more) -> Dataset:
    inputs = torch.as_tensor(inputs)
    split = Split(inputs, torch.zeros(len(inputs), dtype=torch.int64) if labels is None else labels)
    return Dataset("own", split, split, classes, **more)


def agreed(*introductions: Introduction, wanted=None) -> tuple[Agreement, dict[int, str]]:
    """What clients agree on, whose nodes are 100, 101, ..."""
    return agree(dict(enumerate(introductions, 100)), wanted)


# --- classes --------------------------------------------------------------------------------------


def test_classes_are_the_union_by_letter_or_by_value():
    assert agreed(told("x", ["b", "c"]), told("y", ["a", "b"]))[0].classes == ("a", "b", "c")
    assert agreed(told("x", ["10", "9"]), told("y", ["2"]))[0].classes == ("2", "9", "10")


def test_an_order_that_all_clients_have_is_kept():
    assert agreed(told("x", "ba"), told("y", "ba"))[0].classes == ("b", "a")
    assert agreed(told("x", "ba"), told("y", "ab"))[0].classes == ("a", "b")


@given(st.lists(st.lists(st.sampled_from("abcdef"), min_size=1, unique=True), min_size=1))
def test_the_union_does_not_depend_on_who_comes_first(lists):
    clients = [told(f"c{i}", classes) for i, classes in enumerate(lists)]
    agreement, refused = agreed(*clients)
    assert agreement == agreed(*reversed(clients))[0]
    assert set(agreement.classes) == {name for classes in lists for name in classes}
    assert not refused


def test_listed_classes_are_the_configs_and_a_client_with_others_is_named():
    agreement, refused = agreed(told("x", "b"), told("y", "bz"), wanted=["c", "b", "a"])
    assert agreement.classes == ("c", "b", "a")
    assert list(refused) == [101]
    assert "client 'y' has class z" in refused[101]
    assert "federation's 3 (c, b, a)" in refused[101]


def test_a_client_that_is_refused_for_its_classes_has_no_vote_on_the_shape():
    strangers = [told(f"a{i}", "z", COLOUR) for i in range(3)]
    agreement, refused = agreed(*strangers, told("x", "a"), wanted="ab")
    assert agreement.shape == GREY
    assert sorted(refused) == [100, 101, 102]


def test_a_client_that_is_refused_for_its_shape_adds_no_class():
    agreement, _ = agreed(told("x"), told("y"), told("z", "c", COLOUR))
    assert agreement.classes == ("a", "b")


def test_where_no_client_fits_every_one_is_told():
    agreement, refused = agreed(told("x", "y"), told("y", "z"), wanted="ab")
    assert agreement.classes == ("a", "b")
    assert sorted(refused) == [100, 101]


def test_wanted_classes_are_distinct():
    with pytest.raises(UserError, match=r"\bagreement\b.*'a'"):
        agreed(told("x"), wanted=["a", "b", "a"])


# --- shape, type, columns, names ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "others", "pattern"),
    [
        (COLOUR, GREY, r"3 x 8 x 8 \(uint8\).* 1 x 8 x 8 \(uint8\).*\bgrey\b"),
        (GREY, COLOUR, r"1 x 8 x 8 \(uint8\).* 3 x 8 x 8 \(uint8\).*\bcolour\b"),
        ((1, 9, 9), GREY, r"1 x 9 x 9 \(uint8\).* 1 x 8 x 8 \(uint8\).*--size 8\b"),
        ((4,), (5,), r"\b4 \(uint8\).* 5 \(uint8\).*\btable\b"),
        ((4,), GREY, r"\b4 \(uint8\).* 1 x 8 x 8 \(uint8\).*\bkind\b"),
    ],
)
def test_shapes_go_by_majority_and_the_refused_are_told_both(shape, others, pattern):
    odd = told("a", shape=shape)
    agreement, refused = agreed(odd, told("b", shape=others), told("c", shape=others))
    assert agreement.shape == others
    assert list(refused) == [100]
    assert re.search(f"'a'.*{pattern}", refused[100])
    assert explain_misfit(agreement, odd) == refused[100]


def test_of_two_shapes_that_as_many_have_the_first_client_by_name_decides():
    agreement, refused = agreed(told("b", shape=COLOUR), told("a", shape=GREY))
    assert agreement.shape == GREY
    assert list(refused) == [100]


def test_types_must_be_the_same():
    _, refused = agreed(told("a"), told("b", dtype="float32"))
    assert re.search(r"\(float32\).* 1 x 8 x 8 \(uint8\).*\bconvert\b", refused[101])


def test_columns_have_one_order_where_they_have_names():
    one, other = ("age", "pressure"), ("pressure", "age")
    tables = [told("a", shape=(2,), columns=one), told("b", shape=(2,), columns=one)]
    swapped, unnamed = told("c", shape=(2,), columns=other), told("d", shape=(2,))
    agreement, refused = agreed(*tables, swapped, unnamed)
    assert agreement.columns == one
    assert list(refused) == [102]
    assert re.search(r"'pressure'.*'age'", refused[102])
    assert agreed(unnamed)[0].columns == ()
    assert explain_misfit(agreed(unnamed)[0], swapped) is None


def test_the_second_client_of_a_name_is_refused():
    _, refused = agreed(told("a"), told("b"), told("a"))
    assert list(refused) == [102]
    assert "another client 'a'" in refused[102]


def test_a_federation_of_nobody_is_none():
    with pytest.raises(UserError, match="no client"):
        agree({})


def test_later_clients_are_admitted_if_they_fit():
    agreement, _ = agreed(told("x", "abc"))
    assert explain_misfit(agreement, told("late", "b")) is None
    reason = explain_misfit(agreement, told("late", "bd")) or ""
    assert re.search(r"'late'.*class d\b.*\b3 \(a, b, c\)", reason)


# --- what comes from the network ------------------------------------------------------------------

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=12,
)
FIELDS = ("name", "classes", "shape", "dtype", "columns", "version", "mean", "std")


@given(st.one_of(PLAIN, st.dictionaries(st.sampled_from(FIELDS), PLAIN)))
def test_garbage_is_a_user_error_of_one_short_line(values):
    for kind in (Introduction, Agreement):
        with pytest.raises(UserError) as problem:
            kind.parse(values)
        said = str(problem.value)
        assert said.isprintable()
        assert len(said) < 400


@given(key=st.sampled_from(FIELDS), value=PLAIN)
def test_one_bad_value_among_good_ones_is_a_user_error(key, value):
    for good in (
        told("a"),
        Agreement(classes=("a",), shape=(2,), dtype="uint8", mean=(0, 1), std=(1, 2)),
    ):
        values = good.dump() | {key: value}
        try:
            read = type(good).parse(values)
        except UserError:
            continue
        assert json.loads(json.dumps(read.dump())) == read.dump()


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "a\nb"},
        {"classes": []},
        {"classes": ["a", "a"]},
        {"classes": ["a\x1b[31m"]},
        {"classes": ["\ud800"]},
        {"classes": [""]},
        {"classes": ["a" * 201]},
        {"classes": [str(i) for i in range(100_001)]},
        {"classes": "ab"},
        {"shape": []},
        {"shape": [1] * 5},
        {"shape": [0]},
        {"shape": [10**30]},
        {"shape": [10_000, 10_000, 10_000]},
        {"shape": [True]},
        {"shape": ["1"]},
        {"shape": [1.5]},
        {"dtype": "object"},
        {"columns": ["age"] * 2},
        {"columns": ["age"], "shape": [2]},
        {"version": "1\n"},
        {"pickle": "x"},
    ],
)
def test_introductions_have_limits(changes):
    with pytest.raises(UserError, match=r"\bintroduction\b"):
        Introduction.parse(told("a").dump() | changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"mean": [0.0]},
        {"std": [1.0]},
        {"mean": [0.0, 0.0], "std": [1.0, 1.0]},
        {"mean": [0.0], "std": [0.0]},
        {"mean": [0.0], "std": [float("nan")]},
        {"mean": [float("inf")], "std": [1.0]},
    ],
)
def test_agreements_normalise_every_channel_or_none(changes):
    agreement, _ = agreed(told("a"))
    with pytest.raises(UserError, match=r"\bagreement\b.*\b(mean|std)\b"):
        Agreement.parse(agreement.dump() | changes)


def test_what_is_told_survives_json():
    introduction = introduce("a", dataset(torch.zeros(2, 3)), ["x", "y", "z"])
    assert introduction.version == __version__
    agreement, _ = agreed(introduction)
    done = agreement.set_normalisation(compute_moments(dataset(torch.rand(5, 3))))
    for each in (introduction, agreement, done):
        assert type(each).parse(json.loads(json.dumps(each.dump()))) == each
    assert done.mean is not None


def test_inputs_of_another_type_are_refused_at_the_client():
    with pytest.raises(UserError, match=r"uint8\b.*\bfloat32\b.*\bfloat64"):
        introduce("a", dataset(torch.zeros(2, 3, dtype=torch.float64)))
    nested = [Split({"x": {"y": torch.zeros(2, 3)}}, torch.tensor([0, 1]))] * 2
    with pytest.raises(UserError, match="take nested ones apart"):
        introduce("a", Dataset("d", nested[0], nested[1], ("a", "b")))


def tree(**leaves: torch.Tensor) -> Dataset:
    splits = [Split(leaves, torch.tensor([0, 1]))] * 2
    return Dataset("d", splits[0], splits[1], ("a", "b"))


def test_inputs_that_are_a_dict_agree_in_all_their_parts():
    ids, mask = torch.zeros(2, 4, dtype=torch.int64), torch.ones(2, 4, dtype=torch.bool)
    fitting, other = introduce("a", tree(ids=ids, mask=mask)), introduce("b", tree(ids=ids))
    agreement, misfits = agree({0: fitting, 1: introduce("c", tree(ids=ids, mask=mask)), 2: other})
    assert {name: part.dtype for name, part in (agreement.parts or {}).items()} == {  # type: ignore[union-attr]
        "ids": "int64",
        "mask": "bool",
    }
    assert [*misfits] == [2]
    assert "['ids'] shape (4,) of int64" in misfits[2]
    assert agreement.example["mask"].all()
    assert agreement.channels == 0
    for each in (fitting, agreement):
        assert type(each).parse(json.loads(json.dumps(each.dump()))) == each


@pytest.mark.parametrize(
    "changes",
    [
        {"parts": {"x": {"shape": [3], "dtype": "int64"}}},
        {"shape": None},
        {"dtype": None},
        {"shape": None, "dtype": None, "parts": {}},
        {"shape": None, "dtype": None, "parts": {"x": {"shape": [0], "dtype": "int64"}}},
        {"shape": None, "dtype": None, "parts": [{"shape": [3], "dtype": "object"}]},
        {"shape": None, "dtype": None, "parts": [{"shape": [3], "dtype": "int64"}] * 101},
    ],
)
def test_a_form_that_makes_no_sense_is_refused(changes):
    with pytest.raises(UserError):
        Introduction.parse(told("a").dump() | changes)


def test_a_model_for_token_ids_needs_a_file_of_words(tmp_path):
    text = {"name": "text", "path": "x.tsv"}
    config = {"model": {"name": "transformer"}, "deployment": {"minimum": 2}}
    with pytest.raises(UserError, match=r"words = 'words.txt'"):
        check_deployable(parse(config | {"data": text}))
    words = tmp_path / "words.txt"
    with pytest.raises(UserError, match="cannot read"):
        check_deployable(parse(config | {"data": text | {"words": str(words)}}))
    words.write_text("good\nbad\n")
    check_deployable(parse(config | {"data": text | {"words": str(words)}}))


# --- normalisation --------------------------------------------------------------------------------


def added(parts: list[Tree]) -> Tree:
    return {key: sum(part[key] for part in parts) for key in parts[0]}


def cut(inputs, cuts: set[int]) -> list[Dataset]:
    return [dataset(part) for part in np.split(inputs, sorted(cuts)) if len(part)]


@given(
    arrays.arrays(np.uint8, arrays.array_shapes(min_dims=4, max_dims=4, max_side=5)),
    st.sets(st.integers(0, 5)),
)
def test_images_are_normalised_as_if_pooled_however_they_are_divided(images, cuts):
    clients = [compute_moments(client) for client in cut(images, cuts)]
    mean, std = compute_normalisation(added(clients))
    pooled = channel_statistics(torch.from_numpy(images))
    assert mean == pytest.approx(pooled[0], rel=1e-12, abs=0)
    assert std == pytest.approx(pooled[1], rel=1e-9, abs=0)
    assert torch.equal(added(clients)["sum"], torch.from_numpy(images).sum((0, 2, 3)).double())


@given(
    arrays.arrays(
        np.float32,
        arrays.array_shapes(min_dims=2, max_dims=2, max_side=8),
        elements=st.floats(-1e6, 1e6, width=32),
    ),
    st.sets(st.integers(0, 8)),
)
def test_tables_are_normalised_as_if_pooled_however_they_are_divided(table, cuts):
    mean, std = map(
        np.array, compute_normalisation(added([compute_moments(each) for each in cut(table, cuts)]))
    )
    deviation, middle = (
        each.numpy() for each in torch.std_mean(torch.from_numpy(table).double(), 0, correction=0)
    )
    square = middle**2 + deviation**2
    assert np.all(np.abs(mean - middle) <= 1e-14 * np.sqrt(square))
    error, constant = np.abs(std - deviation), deviation**2 <= 1e-12 * square
    loss = 1e-14 * square / np.where(constant, 1.0, deviation)
    assert np.all((error <= 1e-9 * deviation + loss) | constant & (std == 1))
    ordinary = ~constant & (np.abs(middle) <= 300 * deviation)
    assert np.all(error[ordinary] <= 1e-9 * deviation[ordinary])


@pytest.mark.parametrize("value", [0.0, 0.1, -1e-3, 123456.7, 3e38])
def test_a_constant_column_has_a_deviation_of_one(value):
    column = torch.full((1001, 1), value, dtype=torch.float32)
    mean, std = compute_normalisation(
        added([compute_moments(dataset(part)) for part in column.split(300)])
    )
    assert mean == pytest.approx((float(column[0]),), rel=1e-12)
    assert std == (1.0,)


def test_moments_of_more_than_a_chunk_are_whole(monkeypatch):
    data = dataset(torch.randint(0, 256, (50, 3, 4, 4), dtype=torch.uint8))
    whole = compute_moments(data)
    monkeypatch.setattr("fedfm.deploy.normalisation.CHUNK", 100)
    assert all(torch.equal(each, whole[key]) for key, each in compute_moments(data).items())
    assert float(whole["count"]) == 50 * 16


def test_declared_moments_give_what_was_declared():
    data = dataset(torch.zeros(7, 3, 4, 4, dtype=torch.uint8), mean=(1.0, 2.0, 3.0), std=(4.0,))
    mean, std = compute_normalisation(added([compute_declared_moments(data)] * 3))
    assert mean == pytest.approx((1.0, 2.0, 3.0))
    assert std == pytest.approx((4.0, 4.0, 4.0))


@pytest.mark.parametrize(
    ("changes", "pattern"),
    [
        ({"count": torch.tensor(0.0)}, "count"),
        ({"count": torch.tensor(-4.0)}, "count"),
        ({"count": torch.tensor(float("nan"))}, "finite"),
        ({"sum": torch.tensor([1.0, float("inf")])}, "finite"),
        ({"sum": torch.ones(3)}, "shape"),
        ({"square": torch.ones(2, 1)}, "shape"),
        ({"sum": torch.ones(3), "square": torch.ones(3)}, r"mean\b.*\bstd\b.*\b2\b"),
    ],
)
def test_sums_that_make_no_sense_are_refused(changes, pattern):
    agreement, _ = agreed(told("a", shape=(2,), dtype="float32"))
    sums = {"count": torch.tensor(4.0), "sum": torch.ones(2), "square": torch.ones(2)}
    assert agreement.set_normalisation(sums).mean == (0.25, 0.25)
    with pytest.raises(UserError, match=pattern):
        agreement.set_normalisation(sums | changes)


@settings(max_examples=50)
@given(arrays.arrays(np.float64, 5, elements=st.floats()))
def test_any_sums_give_a_positive_deviation_or_an_error(values):
    total = torch.from_numpy(values)
    try:
        mean, std = compute_normalisation(
            {"count": total[0], "sum": total[1:3], "square": total[3:]}
        )
    except UserError:
        return
    assert np.isfinite([*mean, *std]).all()
    assert min(std) > 0


# --- a client's data afterwards -------------------------------------------------------------------


def test_labels_follow_the_names_of_the_classes():
    data = dataset(torch.zeros(4, 1, 2, 2), torch.tensor([0, 1, 1, 0]), ("ill", "healthy"))
    names = ("cold", "healthy", "ill")
    agreement = Agreement(classes=names, shape=(1, 2, 2), dtype="float32", mean=(3,), std=(2,))
    local = apply_agreement(data, agreement)
    for before, after in ((data.train, local.train), (data.test, local.test)):
        wanted = [data.classes[label] for label in before.labels]
        assert [names[label] for label in after.labels] == wanted
    assert local.train.labels.dtype == torch.int64
    assert local.classes == names
    assert (local.mean, local.std) == ((3.0,), (2.0,))
    assert local == replace(local)


def test_data_keep_their_normalisation_until_one_is_agreed():
    data = dataset(torch.zeros(4, 1, 2, 2), mean=(5.0,), std=(6.0,))
    local = apply_agreement(data, Agreement(classes=("a", "b"), shape=(1, 2, 2), dtype="float32"))
    assert (local.mean, local.std) == ((5.0,), (6.0,))


def test_data_with_a_class_that_was_not_agreed_stay_out():
    agreement = Agreement(classes=("a",), shape=(1, 2, 2), dtype="float32")
    with pytest.raises(UserError, match=r"class b\b"):
        apply_agreement(dataset(torch.zeros(4, 1, 2, 2)), agreement)
