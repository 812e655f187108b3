"""Data sets of the Hugging Face library `datasets`, or anything else with columns by name."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from fedfm.core.errors import UserError, require, unknown_name_error
from fedfm.data.dataset import Dataset
from fedfm.data.preprocessing import (
    encode_clients,
    encode_labels,
    fit_normalisation,
    split_off_test,
)
from fedfm.data.split import Split


class HuggingFaceTable(Protocol):
    """A table with columns by name, as a `datasets.Dataset` is."""

    @property
    def column_names(self) -> Sequence[str]:
        """The names of the columns."""
        ...

    def __getitem__(self, column: str, /) -> Any:
        """Return the values of a column."""
        ...


def from_hugging_face(
    train: HuggingFaceTable,
    test: HuggingFaceTable | None = None,
    *,
    inputs: str | Sequence[str],
    label: str = "label",
    client: str | None = None,
    name: str = "hugging face",
) -> Dataset:
    """Turn a data set of the library `datasets` into one of FedFM's.

    Args:
        train: The training samples: a `datasets.Dataset`, or any object with `column_names` and
            columns by name.
        test: The test samples; without them a fifth of every class, of every client if there are
            clients, is split off.
        inputs: The column of images or arrays; or several columns of numbers.
        label: The column of the classes: whole numbers or texts.
        client: The column that names the client of each sample, for `Partition("natural")`.
        name: The name in reports.

    Returns:
        The data set: uint8 images [N, C, H, W], or floats.

    Raises:
        UserError: If a column is missing, or images differ in size.

    Examples:
        >>> import fedfm
        >>> class Table(dict):
        ...     column_names = property(list)
        >>> rows = Table(age=[30, 60] * 5, label=["no", "yes"] * 5, site=["a"] * 4 + ["b"] * 6)
        >>> data = from_hugging_face(rows, inputs=["age"], client="site")
        >>> data.classes, data.clients
        (('no', 'yes'), ('a', 'b'))
    """
    parts = [train] if test is None else [train, test]
    wanted = [inputs] if isinstance(inputs, str) else [*inputs]
    for part in parts:
        for column in (*wanted, label, *([client] if client else [])):
            if column not in part.column_names:
                raise unknown_name_error("column", column, part.column_names)
    values = torch.cat([_to_inputs(part, inputs) for part in parts])
    classes, labels = _read_labels(parts, label)
    clients, owners = _read_clients(parts, client)
    every = Split(values, labels, owners)
    if test is None:
        splits = split_off_test(every.inputs, every.labels, every.clients)
    else:
        order, size = torch.arange(len(every)), len(train[label])
        splits = every.subset(order[:size]), every.subset(order[size:])
    scale = fit_normalisation(splits[0].inputs)
    return Dataset(name, *splits, classes, *scale, clients=clients)


def _to_inputs(part: HuggingFaceTable, inputs: str | Sequence[str]) -> Tensor:
    """Return images [N, C, H, W] in uint8, or floats [N, ...]."""
    try:
        if not isinstance(inputs, str):
            return torch.from_numpy(np.stack([np.asarray(part[c], np.float32) for c in inputs], 1))
        values = np.stack([np.asarray(value) for value in part[inputs]])
    except (ValueError, TypeError) as error:
        raise UserError(
            f"column {inputs!r} cannot become one array ({error}): give all samples the same size, "
            "and texts as numbers"
        ) from error
    require(
        values.dtype.kind in "uifb" and values.ndim > 1,
        f"column {inputs!r} holds {values.dtype} of shape {values.shape[1:]}, not images or arrays "
        "of numbers; name columns of single numbers in a list",
    )
    if values.dtype != np.uint8:
        return torch.from_numpy(values.astype(np.float32))
    images = values[:, None] if values.ndim == 3 else values.transpose(0, 3, 1, 2)
    return torch.from_numpy(np.ascontiguousarray(images))


def _read_labels(parts: Sequence[HuggingFaceTable], label: str) -> tuple[tuple[str, ...], Tensor]:
    """Return the classes, by their names if the library knows them, and the labels [N]."""
    values = [value for part in parts for value in part[label]]
    known = getattr(getattr(parts[0], "features", {}).get(label), "names", None)
    if known:
        return tuple(map(str, known)), torch.tensor(values, dtype=torch.int64)
    return encode_labels([str(value) for value in values])


def _read_clients(
    parts: Sequence[HuggingFaceTable], client: str | None
) -> tuple[tuple[str, ...], Tensor | None]:
    if client is None:
        return (), None
    names = [str(value) for part in parts for value in part[client]]
    return encode_clients(f"column '{client}'", names)
