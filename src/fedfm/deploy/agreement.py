"""What all clients of a federation have in common, agreed at the start.

Classes are compared by name: a client may lack some of the agreed classes but has no others. All
inputs have one shape and one type; tables have the same columns in the same order. The server gives
the vocabulary of texts, so no client says which words it has.
"""

import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal, Self, TypeVar

import torch
from pydantic import Field, model_validator
from torch import Tensor

from fedfm import __version__
from fedfm.core.errors import require
from fedfm.core.inputs import InputTree, describe_inputs, input_shape
from fedfm.core.trees import Tree
from fedfm.data.columns import Column
from fedfm.data.dataset import Dataset
from fedfm.data.split import Split
from fedfm.data.splits import encode_labels
from fedfm.data.text import UNKNOWN, translate_ids
from fedfm.deploy.errors import Refusal
from fedfm.deploy.normalisation import compute_normalisation, expand
from fedfm.deploy.validation import ClientName, Declaration, Floats, Label, Labels, Shape, Version
from fedfm.run.description import DataDescription

logger = logging.getLogger(__name__)
T = TypeVar("T")
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


class Introduction(Inputs):
    """What a client declares about its data first."""

    name: ClientName
    version: Version = __version__
    """The version of FedFM."""
    share: bool = False
    """Whether the data are a share of the config's, as in a simulation."""


class Agreement(Inputs):
    """The form of every client's data and, once it is known, their normalisation."""

    mean: Floats | None = None
    std: Floats | None = None
    vocabulary: Labels = ()
    """The words by token id, if inputs are texts."""

    @model_validator(mode="after")
    def _check_normalisation(self) -> Self:
        if self.mean is not None or self.std is not None:
            mean, std, channels = self.mean or (), self.std or (), self.channels
            require(
                len(mean) == len(std) == channels and min(std) > 0,
                f"mean and std must have {channels} values each, and those of std be positive",
            )
        return self

    def set_normalisation(self, total: Tree) -> "Agreement":
        """Return the agreement with the normalisation that the sum of compact moments gives."""
        mean, std = compute_normalisation(expand(total, *self.units))
        return self.replace(mean=mean, std=std)

    @property
    def channels(self) -> int:
        """The channels of an input, or the columns of a table, that are normalised; 0: none are.

        Token ids are not normalised, nor are inputs that are a dict or a tuple.
        """
        return self.shape[0] if self.shape and self.dtype in QUANTITIES else 0

    @property
    def units(self) -> tuple[int, float]:
        """The units of `compact` moments: values per channel of a sample, and a bound if known."""
        return math.prod((self.shape or ())[1:]), 256.0 if self.dtype == "uint8" else 1.0

    @property
    def example(self) -> InputTree:
        """Inputs [1, ...] of zeros, and True for masks, to try a network on."""
        return _make_example(self)

    def replace(self, **changes: object) -> "Agreement":
        """Return the agreement with some values changed and validated."""
        return Agreement.parse({**self.dump(), **changes})


def introduce(
    name: str, data: Dataset, columns: Sequence[str] = (), share: bool = False
) -> Introduction:
    """Return the introduction of a client with this name, data and names of columns."""
    known = {"name": name, "classes": data.classes, "columns": tuple(columns), "share": share}
    return Introduction.parse(known | _describe_inputs(data))


def hide_classes(introduction: Introduction, classes: Sequence[str]) -> Introduction:
    """Return an introduction with the config's classes, which do not tell which ones a client has.

    Refuse data with other classes; only the client's log says which.
    """
    if not classes:
        raise Refusal(
            "with secure sums a client does not say which classes it has: list the classes of all "
            "clients in deployment.classes"
        )
    strange = [name for name in introduction.classes if name not in classes]
    if strange:
        logger.warning("deployment.classes does not name %s", list_names(strange))
        raise Refusal("it has a class that deployment.classes does not name; its log says which")
    return Introduction.parse(introduction.dump() | {"classes": tuple(classes)})


def agree(
    introductions: Mapping[int, Introduction], wanted_classes: Sequence[str] | None = None
) -> tuple[Agreement, dict[int, str]]:
    """Return what the clients agree on, and why each of the others does not fit, by node.

    `introductions` is in the order in which the clients came. The classes are the wanted ones or
    all that clients have, in the order that the clients share or else by value or letter. Shape,
    type and columns are those of most clients; in a tie, those of the first client by name.
    """
    misfits = _find_duplicates(introductions)
    distinct = [client for node, client in introductions.items() if node not in misfits]
    require(len(distinct) > 0, "no client has introduced itself")
    left = sorted(distinct, key=lambda client: client.name)
    if wanted_classes:
        wanted = set(wanted_classes)
        left = [client for client in left if wanted.issuperset(client.classes)] or left
    typical = _most_common(left, lambda client: client.form)
    left = [client for client in left if client.form == typical.form]
    named = [client for client in left if client.columns] or left
    columns = _most_common(named, lambda client: client.columns).columns
    left = [client for client in left if client.columns in ((), columns)]
    classes = tuple(wanted_classes or ()) or _merge_classes(left)
    form = typical.model_dump(include={"shape", "dtype", "parts"})
    agreement = Agreement.parse(form | {"classes": classes, "columns": columns})
    for node, client in introductions.items():
        if node not in misfits and (reason := explain_misfit(agreement, client)):
            misfits[node] = reason
    return agreement, misfits


def apply_agreement(data: Dataset, agreement: Agreement) -> Dataset:
    """Return a client's data with the agreed labels and, if there is one, normalisation."""
    labels_by_class = {name: label for label, name in enumerate(agreement.classes)}
    strange = [name for name in data.classes if name not in labels_by_class]
    require(not strange, f"data '{data.name}': the federation has no class {list_names(strange)}")
    data = _translate(data, agreement)
    labels = torch.tensor([labels_by_class[name] for name in data.classes])
    train, test = (Split(each.inputs, labels[each.labels]) for each in (data.train, data.test))
    return replace(
        data,
        train=train,
        test=test,
        classes=agreement.classes,
        mean=agreement.mean or data.mean,
        std=agreement.std or data.std,
    )


def _translate(data: Dataset, agreement: Agreement) -> Dataset:
    """Return texts with the agreed token ids, in the order that these give."""
    wanted = agreement.vocabulary
    if not wanted or data.vocabulary == wanted:
        return data
    require(
        UNKNOWN in data.vocabulary,
        f"data '{data.name}': the federation agrees on words, so the data need a vocabulary with "
        f"the word '{UNKNOWN}' (fedfm.data.text.make_vocabulary)",
    )
    train, test = (
        replace(split, inputs=translate_ids(split.inputs, data.vocabulary, wanted))
        for split in (data.train, data.test)
    )
    return replace(data, train=train, test=test, vocabulary=wanted, keep_order=False)


def describe_agreement(agreement: Agreement, columns: tuple[Column, ...] = ()) -> DataDescription:
    """Return what a model needs to know of the clients' data.

    `columns` say how a client's table became numbers.
    """
    return DataDescription(
        agreement.classes,
        input_shape(agreement.example),
        agreement.dtype or "",
        agreement.mean or (0.0,),
        agreement.std or (1.0,),
        vocabulary=agreement.vocabulary,
        columns=columns,
    )


def explain_misfit(agreement: Agreement, client: Introduction) -> str | None:
    """Return why a client cannot take part; None if it can."""
    if client.form != agreement.form:
        return (
            f"client '{client.name}' has inputs of {_describe_form(client)}, the federation of "
            f"{_describe_form(agreement)}; {_suggest_fix(client.shape, agreement.shape)}"
        )
    if client.columns not in ((), agreement.columns) and agreement.columns:
        pairs = zip(client.columns, agreement.columns, strict=False)
        here, there = next((a, b) for a, b in pairs if a != b)
        return (
            f"client '{client.name}' has column '{here}' where the federation has '{there}'; "
            "put the table's columns into the same order"
        )
    strange = sorted(set(client.classes) - set(agreement.classes))
    if strange:
        return (
            f"client '{client.name}' has class {list_names(strange)}, which is not one of the "
            f"federation's {len(agreement.classes)} ({list_names(agreement.classes)}); "
            "rename it or leave it out"
        )
    return None


def list_names(names: Sequence[str], shown: int = 8) -> str:
    """Return the first few names, for a message."""
    rest = len(names) - shown
    return ", ".join(names[:shown]) + (f" and {rest} more" if rest > 0 else "")


def _find_duplicates(introductions: Mapping[int, Introduction]) -> dict[int, str]:
    """Return a reason for each node whose name an earlier node has."""
    taken: set[str] = set()
    reasons = {}
    for node, client in introductions.items():
        if client.name in taken:
            reasons[node] = f"there is another client '{client.name}'; choose another name"
        taken.add(client.name)
    return reasons


def _describe_inputs(data: Dataset) -> Tree:
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


def _make_example(form: Inputs | Part) -> InputTree:
    parts = getattr(form, "parts", None)
    if isinstance(parts, dict):
        return {name: _make_example(part) for name, part in parts.items()}
    if parts is not None:
        return tuple(map(_make_example, parts))
    assert form.shape is not None
    assert form.dtype is not None
    dtype = torch.float32 if form.dtype in QUANTITIES else getattr(torch, form.dtype)
    return (torch.ones if form.dtype == "bool" else torch.zeros)(1, *form.shape, dtype=dtype)


def _most_common(values: Sequence[T], key: Callable[[T], object]) -> T:
    """Return the first value of those whose key is most common; in a tie, of the first key."""
    keys = [repr(key(value)) for value in values]
    return values[keys.index(Counter(keys).most_common(1)[0][0])]


def _merge_classes(introductions: Sequence[Introduction]) -> tuple[str, ...]:
    """Return all clients' classes in their common order, else by value or letter."""
    orders = {client.classes for client in introductions}
    if len(orders) == 1:
        return orders.pop()
    return encode_labels([name for classes in orders for name in classes])[0]


def _describe_form(data: Inputs) -> str:
    if data.shape is None:
        return describe_inputs(_make_example(data))
    return f"shape {' x '.join(map(str, data.shape))} ({data.dtype})"


def _suggest_fix(shape: tuple[int, ...] | None, wanted: tuple[int, ...] | None) -> str:
    """Return what a client can do about inputs of another form."""
    if shape is None or wanted is None:
        return "give them the federation's parts"
    if shape == wanted:
        return "convert them"
    if len(shape) != len(wanted):
        return "they are data of another kind"
    if len(wanted) == 1:
        return f"give the table the federation's {wanted[0]} columns"
    if shape[0] != wanted[0]:
        return "save all images in grey" if wanted[0] == 1 else "save an image in colour"
    return f"scale them: --size {wanted[-1]}, or size in [data] of the site file"
