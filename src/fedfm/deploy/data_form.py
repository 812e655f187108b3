"""The form of data: shapes and types of inputs, names of classes and columns.

Tables have the same columns in the same order.
"""

from typing import Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from fedfm.core.errors import require
from fedfm.core.inputs import InputTree, describe_inputs
from fedfm.core.trees import Tree
from fedfm.data.dataset import Dataset
from fedfm.deploy.validation import Declaration, Label, Labels, Shape

Dtype = Literal["uint8", "float32", "int64", "bool"]
DTYPES: dict[torch.dtype, Dtype] = {
    torch.uint8: "uint8",
    torch.float32: "float32",
    torch.int64: "int64",
    torch.bool: "bool",
}
QUANTITIES = ("uint8", "float32")
"""The types of inputs that are normalised, where an input is one tensor."""
MAX_PARTS = 100
"""The most tensors that one input may have."""


class Part(Declaration):
    """The form of one tensor of an input that is a dict or a tuple."""

    shape: tuple[()] | Shape
    dtype: Dtype


class Inputs(Declaration):
    """The form of some data."""

    classes: Labels = Field(min_length=1)
    shape: Shape | None = None
    dtype: Dtype | None = None
    parts: tuple[Part, ...] | dict[Label, Part] | None = Field(
        default=None, min_length=1, max_length=MAX_PARTS
    )
    """The tensors of an input that is a tuple or a dict; it has no shape and type of its own."""
    columns: Labels = ()
    """The names of a table's columns, if they have names."""

    @model_validator(mode="after")
    def _check_form(self) -> Self:
        given = {self.shape is not None, self.dtype is not None, self.parts is None}
        require(len(given) == 1, "inputs have a shape and a dtype, or else parts")
        named, columns = len(self.columns), (self.shape or (0,))[0]
        require(named in (0, columns), f"{named} names for {columns} columns")
        return self

    @property
    def form(self) -> object:
        """The form of an input: equal for inputs that fit one network."""
        return self.shape, self.dtype, self.parts


def describe_form(data: Dataset) -> Tree:
    """Return the form of a data set's inputs, as plain values."""

    def describe(leaf: InputTree) -> Tree:
        require(
            isinstance(leaf, Tensor),
            f"data '{data.name}': in a federation of machines an input is a tensor, or a dict or "
            "tuple of tensors: take nested ones apart",
        )
        require(
            leaf.dtype in DTYPES,
            f"data '{data.name}': in a federation of machines inputs must be uint8 (images), "
            f"float32, int64 (token ids) or bool, not {leaf.dtype}",
        )
        return {"shape": tuple(leaf.shape[1:]), "dtype": DTYPES[leaf.dtype]}

    inputs = data.train.inputs
    if isinstance(inputs, dict):
        return {"parts": {name: describe(leaf) for name, leaf in inputs.items()}}
    return {"parts": [*map(describe, inputs)]} if isinstance(inputs, tuple) else describe(inputs)


def make_example(form: Inputs | Part) -> InputTree:
    """Return inputs [1, ...] of zeros, and True for masks."""
    parts = getattr(form, "parts", None)
    if isinstance(parts, dict):
        return {name: make_example(part) for name, part in parts.items()}
    if parts is not None:
        return tuple(map(make_example, parts))
    assert form.shape is not None
    assert form.dtype is not None
    dtype = torch.float32 if form.dtype in QUANTITIES else getattr(torch, form.dtype)
    return (torch.ones if form.dtype == "bool" else torch.zeros)(1, *form.shape, dtype=dtype)


def name_form(data: Inputs) -> str:
    """Return the form of data in words."""
    if data.shape is None:
        return describe_inputs(make_example(data))
    return f"shape {' x '.join(map(str, data.shape))} ({data.dtype})"
