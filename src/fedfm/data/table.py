"""The user's own table: a CSV file of numbers with a column of classes."""

import csv
import math
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fedfm.core.errors import UserError, require, unknown
from fedfm.data.dataset import Dataset
from fedfm.data.download import Source
from fedfm.data.folder import encode, split_off_test

FAR = 1e6
"""So many times its deviation a column may lie from zero: float32 has seven digits."""
Row = tuple[int, list[str]]
"""A row's line number and its cells."""


def read_csv(folder: Path, *, path: Path, label: str = "label") -> Dataset:
    """The table at `path`: numbers under a header, classes in the column `label`."""
    path = Path(path).expanduser()
    header, rows = _table(path)
    if label not in header:
        raise unknown(f"label column (in {path})", label, header)
    require(header.count(label) == 1, f"{path} has two columns '{label}'; rename one")
    column = header.index(label)
    features = [index for index in range(len(header)) if index != column]
    require(len(features) > 0, f"{path} has no columns but '{label}'")
    numbers = _numbers(path, header, rows, features)
    _check_precision(path, [header[index] for index in features], numbers)
    inputs = torch.from_numpy(numbers.astype(np.float32))
    for line, cells in rows:
        require(cells[column] != "", f"{path}, row {line}, column '{label}': the label is missing")
    classes, labels = encode([cells[column] for _, cells in rows])
    require(
        len(classes) < len(rows),
        f"{path}, column '{label}': {len(rows)} rows and no two of one class, so that none is left "
        "to test on: is it a column of numbers? There is no regression; name another with label",
    )
    train, test = split_off_test(inputs, labels)
    std, mean = torch.std_mean(train.inputs.double(), 0, correction=0)
    spread = torch.where(std > 0, std, 1.0)
    scale = tuple(mean.tolist()), tuple(spread.tolist())
    return Dataset("csv", train, test, classes, *scale, keep_order=True)


def _table(path: Path) -> tuple[list[str], list[Row]]:
    """The header and the rows of a CSV file."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            reader = csv.reader(stream)
            header = [name.strip() for name in next(reader, [])]
            rows = [(reader.line_num, list(map(str.strip, cells))) for cells in reader if cells]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        said = f"cannot read {path.resolve()} as a CSV table: {error}"
        hint = "; save it as UTF-8" if isinstance(error, UnicodeDecodeError) else ""
        raise UserError(said + hint) from error
    require(
        len(header) != 1 or ";" not in header[0],
        f"{path} has one column, '{''.join(header)}': cells are separated by commas here, not by "
        "';', and decimals have a point",
    )
    require(len(rows) > 0, f"{path} has no rows below its header")
    for line, cells in rows:
        wanted = f"{len(cells)} cells where the header has {len(header)}"
        require(len(cells) == len(header), f"{path}, row {line}: {wanted}")
    return header, rows


def _numbers(
    path: Path, header: list[str], rows: list[Row], columns: list[int]
) -> NDArray[np.float64]:
    """The cells of `columns` [N, F], all finite."""
    values = np.array([[_number(cells[c]) for c in columns] for _, cells in rows])
    bad = np.argwhere(~(np.abs(values) <= np.finfo(np.float32).max))
    if len(bad):
        row, column = bad[0]
        line, cells = rows[row]
        name, cell = header[columns[column]], cells[columns[column]]
        raise UserError(
            f"{path}, row {line}, column '{name}': '{cell}' is no number, or not one "
            "that float32 can hold"
        )
    return values


def _check_precision(path: Path, names: list[str], values: NDArray[np.float64]) -> None:
    """Refuse columns that float32 would blur, such as seconds since 1970."""
    mean, spread = np.abs(values.mean(0)), values.std(0)
    for column in np.flatnonzero((spread > 0) & (mean > FAR * spread)):
        raise UserError(
            f"{path}, column '{names[column]}': its values lie around {mean[column]:g} and differ "
            f"by about {spread[column]:g}, less than float32 can tell apart: subtract a constant"
        )


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return math.nan


CSV = Source("csv", "your table: a CSV file of numbers with a label column (needs path)", read_csv)
