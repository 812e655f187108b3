"""What travels: every tree comes back as it was, everything else is refused with a reason."""

import json
import pickle

import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from fedfm.core.errors import UserError
from fedfm.core.trees import flatten, to_device
from fedfm.deploy.packets import Arrays, Packet, match_tree, pack, unpack
from fedfm.deploy.payload import FACTS, TREES
from fedfm.deploy.validation import to_one_line
from tests.deploy.federations.test_faults import Trap

LIMIT = 2**20
TREE = {"model": {"w": torch.arange(6.0).view(2, 3), "n": torch.tensor(4)}, "empty": {}}


def content(data: bytes, text: str = "{}") -> RecordDict:
    """A record with any text for facts and any bytes for a tree."""
    array = Array(dtype="uint8", shape=(len(data),), stype="safetensors", data=data)
    return RecordDict(
        {FACTS: ConfigRecord({"json": text}), TREES: ArrayRecord(array_dict={"sum": array})}
    )


def text_of(record: RecordDict) -> str:
    return str(record.config_records[FACTS]["json"])


# --- there and back -------------------------------------------------------------------------------


names = st.text("abc.012", min_size=1, max_size=4)
dtypes = st.sampled_from([torch.float32, torch.float64, torch.int64, torch.int32, torch.bool])
leaves = st.builds(
    lambda dtype, shape: (torch.arange(64).view(4, 4, 4)[: shape[0], : shape[1]] % 5).to(dtype),
    dtypes,
    st.tuples(st.integers(0, 4), st.integers(1, 4)),
)
trees = st.recursive(leaves, lambda inner: st.dictionaries(names, inner, min_size=1, max_size=3))
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(names, st.dictionaries(names, trees, max_size=3), max_size=3))
def test_trees_come_back_bit_for_bit(sent):
    found = unpack(pack(Packet({}, sent)), LIMIT).trees
    assert found.keys() == sent.keys()
    for name, tree in sent.items():
        ours, theirs = flatten(found[name]), flatten(tree)
        assert ours.keys() == theirs.keys()
        for leaf in theirs:
            assert ours[leaf].dtype == theirs[leaf].dtype
            assert torch.equal(ours[leaf], theirs[leaf])


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.text(), plain, max_size=4))
def test_facts_come_back(facts):
    assert unpack(pack(Packet(facts)), LIMIT).facts == facts


def test_a_tree_that_goes_to_many_is_written_once():
    arrays: Arrays = {}
    contents = [pack(Packet({"to": k}, {"model": TREE}), arrays) for k in range(3)]
    assert len(arrays) == 1
    assert len({id(each.array_records[TREES]["model"].data) for each in contents}) == 1


# --- what is not a packet -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "record",
    [
        RecordDict(),
        RecordDict({FACTS: ConfigRecord({})}),
        RecordDict({FACTS: ConfigRecord({"json": 3})}),
        RecordDict({FACTS: ConfigRecord({"json": b"{}"})}),
        RecordDict({FACTS: MetricRecord({"json": 1.0})}),
        RecordDict({TREES: ArrayRecord(array_dict={})}),
        content(b""),
        content(b"\x00" * 100),
        content(pickle.dumps(Trap())),
        content(save({"a": torch.ones(3)})[:-1]),
        content(save({"a": torch.ones(3), "a/b": torch.ones(3)})),
        content(save({"a": torch.ones(3), "a/b/c": torch.ones(3)})),
        content(save({"a/b": torch.ones(3), "a": torch.ones(3), "a/b/c": torch.ones(2)})),
        content(save({"a": torch.ones(3)}), "nothing"),
        content(save({"a": torch.ones(3)}), "[" * 100_000),
        content(save({"a": torch.ones(3)}), "9" * 10_000),
        content(save({"a": torch.ones(3)}), "[]"),
    ],
)
def test_anything_else_is_refused(record):
    with pytest.raises(UserError, match=r"packet|table"):
        unpack(record, LIMIT)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200), st.text(max_size=50))
def test_whatever_comes_it_is_a_packet_or_refused(data, text):
    for record in (content(data), content(save({"a": torch.ones(1)}), text)):
        with pytest.raises(UserError):
            unpack(record, LIMIT)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_damaged_bytes_are_a_packet_or_refused(data):
    good = bytearray(save({"a/b": torch.arange(4.0), "c": torch.ones(2, 2)}))
    place = data.draw(st.integers(0, len(good) - 1))
    good[place] = data.draw(st.integers(0, 255))
    try:
        found = unpack(content(bytes(good)), LIMIT)
    except UserError:
        return
    assert all(isinstance(leaf, torch.Tensor) for leaf in flatten(dict(found.trees)).values())


@pytest.mark.parametrize("part", ["facts", "tensors"])
def test_the_limit_counts_facts_and_tensors(part):
    packet = (
        Packet({"x": "y" * 1000}) if part == "facts" else Packet({}, {"t": {"x": torch.ones(250)}})
    )
    record = pack(packet)
    arrays = record.array_records[TREES].values()
    size = len(text_of(record)) + sum(len(array.data) for array in arrays)
    unpack(record, size)
    with pytest.raises(UserError, match=rf"\b{size:,}\b.*message_limit\b.*\b{size - 1:,}"):
        unpack(record, size - 1)


# --- the form that is expected --------------------------------------------------------------------


def test_what_fits_gets_its_empty_branches_back():
    found = unpack(pack(Packet({}, {"t": TREE})), LIMIT).trees["t"]
    assert "empty" not in found
    assert match_tree(found, to_device(TREE, "meta")).keys() == TREE.keys()


@pytest.mark.parametrize(
    ("change", "pattern"),
    [
        ({"n": None}, "'model/n'.*missing"),
        ({"x": torch.ones(1)}, "'model/x'.*not expected"),
        ({"w": torch.ones(3, 2)}, r"'model/w'.*\(3, 2\).*\(2, 3\)"),
        ({"w": torch.ones(6)}, r"'model/w'.*\(6,\).*\(2, 3\)"),
        ({"w": torch.ones(2, 3, dtype=torch.float16)}, "'model/w'.*float16.*float32"),
        ({"w": {"deeper": torch.ones(2, 3)}}, "'model/w'.*missing"),
    ],
)
def test_what_does_not_fit_is_refused(change, pattern):
    given = {name: leaf for name, leaf in (TREE["model"] | change).items() if leaf is not None}
    with pytest.raises(UserError, match=pattern):
        match_tree({"model": given}, to_device(TREE, "meta"))


@pytest.mark.parametrize("said", ["a\nb", "a\tb\r\n\n", "\x1b[31mred", "x" * 9999, "", 3, "\u202e"])
def test_what_others_say_is_one_short_line(said):
    line = to_one_line(said)
    assert line.isprintable()
    assert len(line) <= 500


def test_facts_are_json():
    facts = {"a": [1, None, "ä"]}
    assert json.loads(text_of(pack(Packet(facts)))) == facts
