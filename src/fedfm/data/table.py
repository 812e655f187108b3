"""The user's own table: a CSV file of numbers with a column of classes."""

import csv
import math
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fedfm.core.errors import UserError, require, unknown
from fedfm.data.dataset import Dataset
from fedfm.data.folder import encode_labels, split_off_test
from fedfm.data.source import Source

MAX_OFFSET = 1e6
"""A column's mean may be this many standard deviations from zero: float32 has seven digits."""
MANY_CLASSES, TOO_MANY_CLASSES = 20, 100
"""From how many different numbers on a label column may be, and must be, a quantity."""
Row = tuple[int, list[str]]
"""A row's line number and its cells."""


def read_csv(folder: Path, *, path: Path, label: str = "label") -> Dataset:
    """Read the table at `path`: numbers under a header, classes in the column `label`."""
    path = Path(path).expanduser()
    header, rows = read_table(path)
    if label not in header:
        raise unknown(f"label column (in {path})", label, header)
    require(header.count(label) == 1, f"{path} has two columns '{label}': rename one")
    column = header.index(label)
    features = [index for index in range(len(header)) if index != column]
    require(len(features) > 0, f"{path} has no columns but '{label}'")
    numbers = read_numbers(path, header, rows, features)
    _check_precision(path, [header[index] for index in features], numbers)
    for line, cells in rows:
        require(cells[column] != "", f"{path}, row {line}, column '{label}': the label is missing")
    names = [cells[column] for _, cells in rows]
    _check_labels(f"{path}, column '{label}'", names)
    classes, labels = encode_labels(names)
    train, test = split_off_test(torch.from_numpy(numbers.astype(np.float32)), labels)
    std, mean = torch.std_mean(train.inputs.double(), 0, correction=0)
    std = torch.where(std > 0, std, 1.0)
    scale = tuple(mean.tolist()), tuple(std.tolist())
    return Dataset("csv", train, test, classes, *scale, keep_order=True)


def read_table(path: Path) -> tuple[list[str], list[Row]]:
    """Return the header and the rows of a CSV file."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            reader = csv.reader(stream)
            header = [name.strip() for name in next(reader, [])]
            rows = [(reader.line_num, list(map(str.strip, cells))) for cells in reader if cells]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        hint = "; save it as UTF-8" if isinstance(error, UnicodeDecodeError) else ""
        raise UserError(f"cannot read {path.resolve()} as a CSV table: {error}{hint}") from error
    require(
        len(header) != 1 or ";" not in header[0],
        f"{path} has one column, '{''.join(header)}': separate cells by commas, not by ';', and "
        "write decimals with a point",
    )
    require(len(rows) > 0, f"{path} has no rows below its header")
    for line, cells in rows:
        difference = f"{len(cells)} cells, but the header has {len(header)}"
        require(len(cells) == len(header), f"{path}, row {line}: {difference}")
    return header, rows


def read_numbers(
    path: Path, header: list[str], rows: list[Row], columns: list[int]
) -> NDArray[np.float64]:
    """Return the cells of `columns` [N, F]; refuse those that are not finite numbers."""
    values = np.array([[_to_number(cells[c]) for c in columns] for _, cells in rows])
    bad = np.argwhere(~(np.abs(values) <= np.finfo(np.float32).max))
    if len(bad):
        row, column = bad[0]
        line, cells = rows[row]
        name, cell = header[columns[column]], cells[columns[column]]
        raise UserError(
            f"{path}, row {line}, column '{name}': '{cell}' is not a number, or not one that "
            "float32 can hold"
        )
    return values


def _check_precision(path: Path, names: list[str], values: NDArray[np.float64]) -> None:
    """Refuse columns whose differences float32 cannot hold, such as seconds since 1970."""
    mean, std = np.abs(values.mean(0)), values.std(0)
    for column in np.flatnonzero((std > 0) & (mean > MAX_OFFSET * std)):
        raise UserError(
            f"{path}, column '{names[column]}': the values are around {mean[column]:g} and differ "
            f"by about {std[column]:g}, which float32 cannot tell apart: subtract a constant"
        )


def _check_labels(where: str, names: list[str]) -> None:
    """Refuse labels that are a quantity, and classes of one sample each."""
    classes = set(names)
    numbers = [_to_number(name) for name in classes]
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


def _to_number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return math.nan


CSV = Source("csv", "your table: a CSV file of numbers with a label column (needs path)", read_csv)
