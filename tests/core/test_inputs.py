"""Inputs that are tensors, dicts and tuples."""

import pytest
import torch
from torch import nn

from fedfm.core.errors import UserError
from fedfm.core.inputs import (
    call_network,
    describe_inputs,
    holds_ids,
    input_leaves,
    input_shape,
    is_quantity,
    make_inputs,
    map_inputs,
    name_leaves,
    to_like,
)

IDS, MASK = torch.arange(6).view(2, 3), torch.ones(2, 3, dtype=torch.bool)


class Recorder(nn.Module):
    def forward(self, *args, **kwargs):
        return args, kwargs


def test_a_dict_gives_keywords_a_tuple_positions_and_a_tensor_the_argument():
    assert call_network(Recorder(), {"ids": IDS, "mask": MASK}) == ((), {"ids": IDS, "mask": MASK})
    assert call_network(Recorder(), (IDS, {"mask": MASK})) == ((IDS, {"mask": MASK}), {})
    assert call_network(Recorder(), IDS) == ((IDS,), {})


def test_a_function_is_applied_to_corresponding_leaves():
    tree = {"a": IDS, "b": (IDS, MASK)}
    lengths = map_inputs(len, tree)
    assert lengths == {"a": 2, "b": (2, 2)}
    sums = map_inputs(torch.add, {"a": IDS, "b": (IDS,)}, {"b": (IDS,), "a": IDS})
    assert torch.equal(sums["b"][0], 2 * IDS)


def test_leaves_have_names_and_an_order_that_dicts_do_not_change():
    assert list(name_leaves({"b": IDS, "a": (IDS, MASK)})) == [
        "inputs['a'][0]",
        "inputs['a'][1]",
        "inputs['b']",
    ]
    assert [leaf.dtype for leaf in input_leaves({"b": MASK, "a": IDS})] == [torch.int64, torch.bool]
    assert input_leaves(IDS) == [IDS]


def test_the_form_of_inputs_is_described():
    assert input_shape({"ids": IDS, "x": (torch.zeros(2),)}) == {"ids": (3,), "x": ((),)}
    assert describe_inputs(torch.zeros(2, 3, 4)) == "shape (3, 4)"
    assert describe_inputs((IDS, MASK)) == "[0] shape (3,) of int64, [1] shape (3,) of bool"


@pytest.mark.parametrize(
    ("dtype", "quantity", "ids"),
    [
        (torch.float16, True, False),
        (torch.uint8, True, False),
        (torch.int32, False, True),
        (torch.int64, False, True),
        (torch.bool, False, False),
    ],
)
def test_floats_and_bytes_are_quantities_other_integers_are_ids(dtype, quantity, ids):
    leaf = torch.zeros(2, dtype=dtype)
    assert (is_quantity(leaf), holds_ids(leaf)) == (quantity, ids)


def test_quantities_get_the_networks_precision_and_ids_stay():
    like = torch.zeros(1, dtype=torch.float64)
    cast = to_like({"x": torch.zeros(2), "ids": IDS, "mask": MASK}, like)
    assert [leaf.dtype for leaf in cast.values()] == [torch.float64, torch.int64, torch.bool]


def test_mappings_become_dicts():
    from collections import UserDict

    made = make_inputs(UserDict(ids=IDS))
    assert type(made) is dict
    assert made["ids"] is IDS


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([torch.zeros(3), torch.zeros(5)], "2 tensors.*torch.stack.*pad_sequence"),
        ({"ids": [1, 2]}, r"inputs\['ids'\].*list.*torch.as_tensor"),
        ((IDS, "text"), r"inputs\[1\].*str"),
        ({}, "empty dict"),
        ((), "empty tuple"),
        (torch.tensor(1.0), "first dimension"),
    ],
)
def test_anything_else_is_refused_with_its_place(inputs, message):
    with pytest.raises(UserError, match=message) as problem:
        make_inputs(inputs)
    assert "\n" not in str(problem.value)
