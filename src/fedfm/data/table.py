"""The user's own tables: CSV, TSV or Parquet files with a column of classes."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedfm.core.errors import require
from fedfm.data.columns import TableOptions, encode_columns, find_missing, fit_columns
from fedfm.data.dataset import Dataset
from fedfm.data.preprocessing import draw_test, encode_clients, encode_labels, fit_normalisation
from fedfm.data.source import Source
from fedfm.data.split import Split
from fedfm.data.table_files import Cells, read_parquet_files, read_text_files, to_number

MANY_CLASSES, TOO_MANY_CLASSES = 20, 100
"""From how many different numbers on a label column may be, and must be, a quantity."""


def read_csv(
    folder: Path,
    *,
    path: Path,
    label: str | None = None,
    client: str | None = None,
    drop: Sequence[str] = (),
    header: bool = True,
    missing: Sequence[str] = (),
    fill: str | Mapping[str, float] | None = None,
    categories: Sequence[str] | Mapping[str, Sequence[str]] | None = None,
    merge: Mapping[str, Sequence[str]] | None = None,
) -> Dataset:
    """Read the CSV or TSV file at `path`, or a folder of them: one for each client."""
    cells = read_text_files(Path(path).expanduser(), header)
    label = label or ("label" if header else cells.header[-1])
    options = TableOptions(label, client, drop, missing, fill, categories, merge)
    return _to_dataset("csv", cells, options)


def read_parquet(
    folder: Path,
    *,
    path: Path,
    label: str = "label",
    client: str | None = None,
    drop: Sequence[str] = (),
    missing: Sequence[str] = (),
    fill: str | Mapping[str, float] | None = None,
    categories: Sequence[str] | Mapping[str, Sequence[str]] | None = None,
    merge: Mapping[str, Sequence[str]] | None = None,
) -> Dataset:
    """Read the Parquet file at `path`, or a folder of them: one for each client."""
    cells = read_parquet_files(Path(path).expanduser())
    options = TableOptions(label, client, drop, missing, fill, categories, merge)
    return _to_dataset("parquet", cells, options)


def _to_dataset(name: str, cells: Cells, options: TableOptions) -> Dataset:
    """Return a table as a data set; a fifth of every client's samples of a class is for testing."""
    columns = _choose_columns(cells, options)
    names = read_labels(cells, options)
    classes, labels = encode_labels(names)
    clients, owners = _read_clients(cells, options)
    test = draw_test(labels, owners)
    fitted = fit_columns(cells, columns, ~test.numpy(), options)
    numbers = encode_columns(cells, fitted).astype(np.float32)
    check_labels(f"{cells.path}, column '{options.label}'", names)
    every = Split(torch.from_numpy(numbers), labels, owners)
    train, test_split = every.subset(~test), every.subset(test)
    scale = fit_normalisation(train.inputs)
    return Dataset(
        *(name, train, test_split, classes, *scale),
        clients=clients,
        columns=fitted,
        keep_order=True,
    )


def _choose_columns(cells: Cells, options: TableOptions) -> list[int]:
    """Return the columns that the network sees."""
    others = {cells.find(name, "drop") for name in options.drop}
    others.add(cells.find(options.label, "label"))
    if options.client:
        others.add(cells.find(options.client, "client"))
    for name in options.categories or ():
        cells.find(name, "categories")
    for name in options.fill if isinstance(options.fill, Mapping) else ():
        cells.find(name, "fill")
    columns = [index for index in range(len(cells.header)) if index not in others]
    require(len(columns) > 0, f"{cells.path} has no columns but '{options.label}'")
    return columns


def _read_texts(cells: Cells, column: int, options: TableOptions, what: str) -> list[str]:
    """Return the cells of a column in which none may be missing."""
    texts = cells.column(column)
    gaps = np.flatnonzero(find_missing(texts, options.missing))
    where = cells.locate(int(gaps[0]), column) if len(gaps) else ""
    require(len(gaps) == 0, f"{where}: the {what} is missing: remove the row, or write the {what}")
    return texts


def _read_clients(cells: Cells, options: TableOptions) -> tuple[tuple[str, ...], Tensor | None]:
    """Return the clients' names and the client [N] of each row, from a column or the files."""
    names = name_clients(cells, options)
    where = f"{cells.path}, column '{options.client}'" if options.client else str(cells.path)
    return encode_clients(where, names) if names else ((), None)


def name_clients(cells: Cells, options: TableOptions) -> list[str]:
    """Return the name of each row's client, from a column or the files; empty if none says it."""
    if options.client is None:
        return cells.files
    return _read_texts(cells, cells.find(options.client, "client"), options, "client")


def read_labels(cells: Cells, options: TableOptions) -> list[str]:
    """Return the class of each row."""
    column = cells.find(options.label, "label")
    return _merge(_read_texts(cells, column, options, "label"), options.merge or {})


def _merge(names: list[str], merge: Mapping[str, Sequence[str]]) -> list[str]:
    """Replace labels by the class that stands for several of them."""
    merged: dict[str, str] = {}
    for name, labels in merge.items():
        for label in labels:
            require(label in names, f"data.merge.{name}: no row has the label '{label}'")
            require(label not in merged, f"data.merge: the label '{label}' is in two classes")
            merged[label] = name
    return [merged.get(name, name) for name in names]


def check_labels(where: str, names: list[str]) -> None:
    """Refuse labels that are a quantity, and classes of one sample each."""
    classes = set(names)
    numbers = [to_number(name) for name in classes]
    fractions = not all(number.is_integer() for number in numbers)
    few_rows_each = 10 * len(classes) > len(names)
    quantity = len(classes) > TOO_MANY_CLASSES or (
        len(classes) > MANY_CLASSES and (fractions or few_rows_each)
    )
    require(
        not all(map(math.isfinite, numbers)) or not quantity,
        f"{where} has {len(classes)} different numbers in {len(names)} rows: that looks like a "
        "quantity, and FedFM classifies only. Name another column with label=..., or group the "
        "numbers into classes. If every number is a class, write it as text, such as 'class 7'",
    )
    require(
        len(classes) < len(names),
        f"{where}: every row is a class of its own, so none is left to test on; name the column of "
        "classes with label=...",
    )


CSV = Source(
    "csv",
    "your table: a CSV or TSV file with a label column, or one for each client (needs path)",
    read_csv,
)
PARQUET = Source(
    "parquet",
    "your table: a Parquet file with a label column, or one for each client (needs path)",
    read_parquet,
)
