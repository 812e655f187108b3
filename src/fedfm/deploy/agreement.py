"""What all clients of a federation have in common, agreed at the start from what each one tells.

Classes are agreed by name: a client may lack some, but has no others. Inputs have one shape, one
type and, where they are tables, the same columns in the same order.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal, Self, TypeVar

import torch
from pydantic import Field, model_validator

from fedfm import __version__
from fedfm.core.errors import require
from fedfm.core.trees import Tree
from fedfm.data.dataset import Dataset, Split
from fedfm.data.folder import encode_labels
from fedfm.deploy.normalisation import expanded, normalisation
from fedfm.deploy.validation import ClientName, Floats, Labels, Shape, Told, Version

T = TypeVar("T")
Dtype = Literal["uint8", "float32"]
DTYPES: dict[torch.dtype, Dtype] = {torch.uint8: "uint8", torch.float32: "float32"}


class Inputs(Told):
    """What somebody's data are like."""

    classes: Labels = Field(min_length=1)
    shape: Shape
    dtype: Dtype
    columns: Labels = ()
    """Of a table whose columns have names."""

    @model_validator(mode="after")
    def _names_every_column(self) -> Self:
        named, columns = len(self.columns), self.shape[0]
        require(named in (0, columns), f"{named} names for {columns} columns")
        return self


class Introduction(Inputs):
    """What a client tells about its data before anything else."""

    name: ClientName
    version: Version = __version__
    """Of this package."""
    share: bool = False
    """Whether its data are a share of the config's, as in a simulation."""


class Agreement(Inputs):
    """What every client's data are like, and how they are normalised once that is known."""

    mean: Floats | None = None
    std: Floats | None = None

    @model_validator(mode="after")
    def _normalises(self) -> Self:
        if self.mean is not None or self.std is not None:
            mean, std, channels = self.mean or (), self.std or (), self.shape[0]
            require(
                len(mean) == len(std) == channels and min(std) > 0,
                f"mean and std must both have {channels} values, and std positive ones",
            )
        return self

    def normalised(self, total: Tree) -> "Agreement":
        """With the normalisation that the sum of all clients' compact moments gives."""
        mean, std = normalisation(expanded(total, *self.units))
        return self.having(mean=mean, std=std)

    @property
    def units(self) -> tuple[int, float]:
        """How many values a channel of a sample has, and what bounds their size where it is known.

        The units of `compact` moments.
        """
        return math.prod(self.shape[1:]), 256.0 if self.dtype == "uint8" else 1.0

    def having(self, **changes: object) -> "Agreement":
        """With other values."""
        return Agreement.of({**self.values(), **changes})


def introduce(
    name: str, data: Dataset, columns: Sequence[str] = (), share: bool = False
) -> Introduction:
    """A client's introduction, by its name, its data and the names of a table's columns."""
    dtype = data.train.inputs.dtype
    require(
        dtype in DTYPES and data.test.inputs.dtype == dtype,
        f"data '{data.name}': inputs must be uint8 (images) or float32, not {dtype}",
    )
    told = {"name": name, "classes": data.classes, "shape": data.shape, "dtype": DTYPES[dtype]}
    return Introduction.of({**told, "columns": tuple(columns), "share": share})


def agree(
    introductions: Mapping[int, Introduction], wanted_classes: Sequence[str] | None = None
) -> tuple[Agreement, dict[int, str]]:
    """What the clients (by node, in the order they came) agree on; why each of the others cannot.

    Classes are those wanted, else all that clients have: in the order that all of them have them
    in, else by value or letter. Shape, type and columns are what most clients have; of equals,
    what the first by name has.
    """
    refused = _namesakes(introductions)
    heard = [told for node, told in introductions.items() if node not in refused]
    require(len(heard) > 0, "no client has introduced itself")
    left = sorted(heard, key=lambda told: told.name)
    if wanted_classes:
        wanted = set(wanted_classes)
        left = [told for told in left if wanted.issuperset(told.classes)] or left
    shape, dtype = _most([(told.shape, told.dtype) for told in left])
    left = [told for told in left if (told.shape, told.dtype) == (shape, dtype)]
    columns = _most([told.columns for told in left if told.columns] or [()])
    left = [told for told in left if told.columns in ((), columns)]
    classes = tuple(wanted_classes or ()) or _all_classes(left)
    agreement = Agreement.of(
        {"classes": classes, "shape": shape, "dtype": dtype, "columns": columns}
    )
    for node, told in introductions.items():
        if node not in refused and (reason := _misfit(agreement, told)):
            refused[node] = reason
    return agreement, refused


def admit(agreement: Agreement, introduction: Introduction) -> None:
    """Refuse a client, with the reason, that does not fit what was agreed."""
    reason = _misfit(agreement, introduction)
    require(reason is None, str(reason))


def localised(data: Dataset, agreement: Agreement) -> Dataset:
    """A client's data with the labels of the agreed classes, normalised as agreed (if it is)."""
    places = {name: label for label, name in enumerate(agreement.classes)}
    strange = [name for name in data.classes if name not in places]
    require(not strange, f"data '{data.name}': the federation has no class {_listed(strange)}")
    labels = torch.tensor([places[name] for name in data.classes])
    train, test = (Split(each.inputs, labels[each.labels]) for each in (data.train, data.test))
    return replace(
        data,
        train=train,
        test=test,
        classes=agreement.classes,
        mean=agreement.mean or data.mean,
        std=agreement.std or data.std,
    )


def _namesakes(introductions: Mapping[int, Introduction]) -> dict[int, str]:
    """The clients with a name that one before them has."""
    taken: set[str] = set()
    refused = {}
    for node, told in introductions.items():
        if told.name in taken:
            refused[node] = f"there is another client '{told.name}'; give this one its own name"
        taken.add(told.name)
    return refused


def _most(found: Sequence[T]) -> T:
    """What is found most often; of equals, the first."""
    return Counter(found).most_common(1)[0][0]


def _all_classes(introductions: Sequence[Introduction]) -> tuple[str, ...]:
    """Every client's classes: as all of them order them, else by value or letter."""
    orders = {told.classes for told in introductions}
    if len(orders) == 1:
        return orders.pop()
    return encode_labels([name for classes in orders for name in classes])[0]


def _misfit(agreement: Agreement, told: Introduction) -> str | None:
    """Why a client cannot take part."""
    if (told.shape, told.dtype) != (agreement.shape, agreement.dtype):
        return (
            f"client '{told.name}' has inputs of {_form(told)}, the federation of "
            f"{_form(agreement)}; {_remedy(told.shape, agreement.shape)}"
        )
    if told.columns not in ((), agreement.columns) and agreement.columns:
        here, there = _first_difference(told.columns, agreement.columns)
        return (
            f"client '{told.name}' has column '{here}' where the federation has '{there}'; "
            "bring the table's columns into the same order"
        )
    strange = sorted(set(told.classes) - set(agreement.classes))
    if strange:
        return (
            f"client '{told.name}' has class {_listed(strange)}, which is none of the "
            f"federation's {len(agreement.classes)} ({_listed(agreement.classes)}); "
            "rename it or leave it out"
        )
    return None


def _form(data: Inputs) -> str:
    return f"shape {' x '.join(map(str, data.shape))} ({data.dtype})"


def _remedy(shape: tuple[int, ...], wanted: tuple[int, ...]) -> str:
    """What a client does about a shape, if it is the shape."""
    if shape == wanted:
        return "convert them"
    if len(shape) != len(wanted):
        return "they are data of another kind"
    if len(wanted) == 1:
        return f"give the table the federation's {wanted[0]} columns"
    if shape[0] != wanted[0]:
        return "save all images in grey" if wanted[0] == 1 else "save an image in colour"
    return f"scale them: --size {wanted[-1]}, or size in [data] of the site file"


def _first_difference(here: Sequence[str], there: Sequence[str]) -> tuple[str, str]:
    return next((a, b) for a, b in zip(here, there, strict=False) if a != b)


def _listed(names: Sequence[str]) -> str:
    """The first few names, for a message."""
    return ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
