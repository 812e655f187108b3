"""Data sets whose samples are tensors of any type, dicts or tuples."""

import pytest
import torch
from torch import Tensor

from fedfm.core.errors import UserError
from fedfm.data import Dataset, Split

LABELS = torch.arange(6) % 2
IDS = torch.arange(24).reshape(6, 4)
MASK = IDS % 5 > 0


def make(inputs, test=None, **options) -> Dataset:
    test = inputs if test is None else test
    return Dataset("mine", Split(inputs, LABELS), Split(test, LABELS), ("a", "b"), **options)


@pytest.mark.parametrize(
    ("dtype", "digest", "order"),
    [
        (torch.float32, "0786cddc0eef30f2", [5, 0, 2, 1, 3, 4]),
        (torch.uint8, "1ed1b73ee4e83070", [0, 2, 4, 5, 1, 3]),
    ],
)
def test_one_tensor_keeps_its_digest_and_order(dtype, digest, order):
    """The values of version 0.1: recorded runs and partitions depend on them."""
    inputs = (torch.arange(24.0).reshape(6, 2, 2) % 7).to(dtype)
    test = Split(inputs[:4], LABELS[:4])
    data = Dataset("mine", Split(inputs, LABELS), test, ("a", "b"))
    assert data.digest == digest
    assert torch.equal(data.train.inputs, inputs[order])


@pytest.mark.parametrize("kind", [dict, tuple])
def test_a_sample_may_be_a_dict_or_a_tuple(kind):
    parts = {"ids": IDS, "mask": MASK, "length": torch.arange(6), "x": torch.randn(6, 2, 3)}
    inputs = parts if kind is dict else tuple(parts.values())
    data = make(inputs)
    leaves = data.train.inputs.values() if kind is dict else data.train.inputs
    assert [leaf.dtype for leaf in leaves] == [leaf.dtype for leaf in parts.values()]
    shapes = ((4,), (4,), (), (2, 3))
    assert data.shape == (dict(zip(parts, shapes, strict=True)) if kind is dict else shapes)
    assert repr(data).count("(2, 3)") == 1
    subset = data.train.subset(torch.tensor([3, 1])).inputs
    chosen = subset["ids"] if kind is dict else subset[0]
    assert len(chosen) == 2


def test_all_leaves_of_a_sample_stay_together_and_decide_the_order():
    data = make({"ids": IDS, "mask": MASK}, keep_order=False)
    train = data.train.inputs
    assert not torch.equal(train["ids"], IDS)
    assert torch.equal(train["mask"], train["ids"] % 5 > 0)
    shuffled = torch.tensor([3, 0, 5, 1, 4, 2])
    again = Split({"mask": MASK[shuffled], "ids": IDS[shuffled]}, LABELS[shuffled])
    other = Dataset("mine", again, data.test, ("a", "b"))
    assert torch.equal(other.train.inputs["ids"], train["ids"])
    assert other.digest == data.digest
    assert make({"ids": IDS, "mask": ~MASK}).digest != data.digest


def test_ids_and_masks_reach_the_network_as_they_are():
    data = make((IDS, MASK, torch.ones(6, 2, dtype=torch.uint8)))
    ids, mask, images = data.normalise(data.train.inputs)
    assert ids is data.train.inputs[0]
    assert mask.dtype == torch.bool
    assert images.dtype == torch.float32
    assert torch.equal(make(IDS).normalise(IDS), IDS)


def test_examples_hold_the_smallest_and_the_largest_ids():
    ids = torch.ones(6, 4, dtype=torch.int64)
    ids[4, 2] = 90
    low = torch.ones(6, 4, dtype=torch.int64)
    low[5, 0] = -3
    example = make({"ids": ids}, {"ids": low}).example["ids"]
    assert (int(example.min()), int(example.max())) == (-3, 90)
    image = make(torch.full((6, 1, 2, 2), 4.0), mean=(2.0,), std=(4.0,)).example
    assert torch.equal(image, torch.full((2, 1, 2, 2), 0.5))


@pytest.mark.parametrize(
    ("inputs", "options", "message"),
    [
        ({"ids": IDS, "x": torch.zeros(5, 2)}, {}, r"5 inputs\['x'\] but 6 labels"),
        (({"x": torch.full((6,), torch.nan)},), {}, "6 samples hold NaN"),
        (IDS, {"mean": (1.0,), "std": (2.0,)}, "mean, std and augment"),
        (IDS, {"augment": True}, "mean, std and augment"),
        (IDS, {"vocabulary": ["w"] * 23}, "0 to 23.*23 words, 0 to 22"),
        (IDS - 1, {"vocabulary": ["w"] * 40}, "-1 to 22"),
        ({"ids": IDS}, {"vocabulary": ["w"] * 40}, "one tensor of token ids"),
        (torch.zeros(6, 4), {"vocabulary": ["w"] * 40}, "one tensor of token ids"),
        (IDS, {"vocabulary": "words"}, "vocabulary must be a list of names"),
    ],
)
def test_data_that_cannot_be_used_are_refused_in_a_line(inputs, options, message):
    with pytest.raises(UserError, match=message) as problem:
        make(inputs, **options)
    assert "\n" not in str(problem.value)


@pytest.mark.parametrize(
    "test",
    [IDS[:, :3], IDS.float(), IDS.int(), {"ids": IDS}, (IDS,)],
    ids=["shape", "floats", "int32", "dict", "tuple"],
)
def test_training_and_test_samples_have_one_form(test: Tensor):
    with pytest.raises(UserError, match=r"training inputs have shape \(4,\) of int64, test inputs"):
        make(IDS, test)
