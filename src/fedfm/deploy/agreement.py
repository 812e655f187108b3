"""What all clients of a federation have in common, agreed at the start.

Classes are compared by name: a client may lack some of the agreed classes but has no others. All
inputs have one shape and one type; tables have the same columns in the same order.
"""

import logging
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal, Self, TypeVar

import torch
from pydantic import Field, model_validator
from torch import Tensor

from fedfm import __version__
from fedfm.core.errors import require
from fedfm.core.inputs import describe_inputs
from fedfm.core.trees import Tree
from fedfm.data.dataset import Dataset
from fedfm.data.split import Split
from fedfm.data.splits import encode_labels
from fedfm.deploy.errors import Refusal
from fedfm.deploy.normalisation import compute_normalisation, expand
from fedfm.deploy.validation import ClientName, Declaration, Floats, Labels, Shape, Version
from fedfm.run.description import DataDescription

logger = logging.getLogger(__name__)
T = TypeVar("T")
Dtype = Literal["uint8", "float32"]
DTYPES: dict[torch.dtype, Dtype] = {torch.uint8: "uint8", torch.float32: "float32"}


class Inputs(Declaration):
    """The form of some data."""

    classes: Labels = Field(min_length=1)
    shape: Shape
    dtype: Dtype
    columns: Labels = ()
    """The names of a table's columns, if they have names."""

    @model_validator(mode="after")
    def _check_columns(self) -> Self:
        named, columns = len(self.columns), self.shape[0]
        require(named in (0, columns), f"{named} names for {columns} columns")
        return self


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

    @model_validator(mode="after")
    def _check_normalisation(self) -> Self:
        if self.mean is not None or self.std is not None:
            mean, std, channels = self.mean or (), self.std or (), self.shape[0]
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
    def units(self) -> tuple[int, float]:
        """The units of `compact` moments: values per channel of a sample, and a bound if known."""
        return math.prod(self.shape[1:]), 256.0 if self.dtype == "uint8" else 1.0

    @property
    def example(self) -> Tensor:
        """Inputs [1, ...] of zeros, to try a network on."""
        return torch.zeros(1, *self.shape)

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """None: clients do not agree on token ids."""
        return ()

    def replace(self, **changes: object) -> "Agreement":
        """Return the agreement with some values changed and validated."""
        return Agreement.parse({**self.dump(), **changes})


def introduce(
    name: str, data: Dataset, columns: Sequence[str] = (), share: bool = False
) -> Introduction:
    """Return the introduction of a client with this name, data and names of columns."""
    inputs = data.train.inputs
    require(
        isinstance(inputs, Tensor),
        f"data '{data.name}': in a federation of machines inputs must be one tensor, not "
        f"{describe_inputs(inputs)}; a simulation takes them",
    )
    dtype = inputs.dtype
    require(
        dtype in DTYPES and data.test.inputs.dtype == dtype,
        f"data '{data.name}': in a federation of machines inputs must be uint8 (images) or "
        f"float32, not {dtype}",
    )
    return Introduction.parse(
        {
            "name": name,
            "classes": data.classes,
            "shape": data.shape,
            "dtype": DTYPES[dtype],
            "columns": tuple(columns),
            "share": share,
        }
    )


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
    shape, dtype = _most_common([(client.shape, client.dtype) for client in left])
    left = [client for client in left if (client.shape, client.dtype) == (shape, dtype)]
    columns = _most_common([client.columns for client in left if client.columns] or [()])
    left = [client for client in left if client.columns in ((), columns)]
    classes = tuple(wanted_classes or ()) or _merge_classes(left)
    agreement = Agreement.parse(
        {"classes": classes, "shape": shape, "dtype": dtype, "columns": columns}
    )
    for node, client in introductions.items():
        if node not in misfits and (reason := explain_misfit(agreement, client)):
            misfits[node] = reason
    return agreement, misfits


def apply_agreement(data: Dataset, agreement: Agreement) -> Dataset:
    """Return a client's data with the agreed labels and, if there is one, normalisation."""
    labels_by_class = {name: label for label, name in enumerate(agreement.classes)}
    strange = [name for name in data.classes if name not in labels_by_class]
    require(not strange, f"data '{data.name}': the federation has no class {list_names(strange)}")
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


def describe_agreement(agreement: Agreement) -> DataDescription:
    """Return what a trained model needs to know of the clients' data."""
    return DataDescription(
        agreement.classes,
        agreement.shape,
        agreement.dtype,
        agreement.mean or (0.0,),
        agreement.std or (1.0,),
    )


def explain_misfit(agreement: Agreement, client: Introduction) -> str | None:
    """Return why a client cannot take part; None if it can."""
    if (client.shape, client.dtype) != (agreement.shape, agreement.dtype):
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


def _most_common(values: Sequence[T]) -> T:
    """Return the most common value; in a tie, the first."""
    return Counter(values).most_common(1)[0][0]


def _merge_classes(introductions: Sequence[Introduction]) -> tuple[str, ...]:
    """Return all clients' classes in their common order, else by value or letter."""
    orders = {client.classes for client in introductions}
    if len(orders) == 1:
        return orders.pop()
    return encode_labels([name for classes in orders for name in classes])[0]


def _describe_form(data: Inputs) -> str:
    return f"shape {' x '.join(map(str, data.shape))} ({data.dtype})"


def _suggest_fix(shape: tuple[int, ...], wanted: tuple[int, ...]) -> str:
    """Return what a client can do about inputs of another form."""
    if shape == wanted:
        return "convert them"
    if len(shape) != len(wanted):
        return "they are data of another kind"
    if len(wanted) == 1:
        return f"give the table the federation's {wanted[0]} columns"
    if shape[0] != wanted[0]:
        return "save all images in grey" if wanted[0] == 1 else "save an image in colour"
    return f"scale them: --size {wanted[-1]}, or size in [data] of the site file"
