"""What all clients of a federation have in common, agreed at the start.

Classes are compared by name: a client may lack some of the agreed classes but has no others. All
inputs have one form. The server gives the vocabulary of texts, so no client says which words it
has.
"""

import logging
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Self

import torch
from pydantic import model_validator

from fedfm import __version__
from fedfm.core.errors import require
from fedfm.core.inputs import InputTree, input_shape
from fedfm.core.trees import Tree
from fedfm.data.columns import ColumnEncoding
from fedfm.data.dataset import Dataset
from fedfm.data.split import Split
from fedfm.data.text import UNKNOWN, translate_ids
from fedfm.deploy.data_form import QUANTITIES, Inputs, describe_form, make_example
from fedfm.deploy.errors import Refusal
from fedfm.deploy.normalisation import compute_normalisation, expand
from fedfm.deploy.validation import ClientName, Floats, Labels, Version
from fedfm.run.description import DataDescription

logger = logging.getLogger(__name__)


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
        return make_example(self)

    def replace(self, **changes: object) -> "Agreement":
        """Return the agreement with some values changed and validated."""
        return Agreement.parse({**self.dump(), **changes})


def introduce(
    name: str, data: Dataset, columns: Sequence[str] = (), share: bool = False
) -> Introduction:
    """Return the introduction of a client with this name, data and names of columns."""
    known = {"name": name, "classes": data.classes, "columns": tuple(columns), "share": share}
    return Introduction.parse(known | describe_form(data))


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


def describe_agreement(
    agreement: Agreement, columns: tuple[ColumnEncoding, ...] = ()
) -> DataDescription:
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


def list_names(names: Sequence[str], shown: int = 8) -> str:
    """Return the first few names, for a message."""
    rest = len(names) - shown
    return ", ".join(names[:shown]) + (f" and {rest} more" if rest > 0 else "")
