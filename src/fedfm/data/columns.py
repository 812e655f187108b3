"""Turn the columns of a table into numbers: missing values are filled, categories become 0/1."""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedfm.core.errors import UserError, list_some, require
from fedfm.data.cells import Cells, to_number
from fedfm.data.splits import encode_labels

logger = logging.getLogger(__name__)

MAX_OFFSET = 1e6
"""A column's mean may be this many standard deviations from zero: float32 has seven digits."""
MISSING = ("", "?", "na", "n/a", "nan", "null")
"""Cells that stand for a missing value, in small letters."""
MANY_CATEGORIES = 50
"""More different texts than this are not categories."""
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class TableOptions:
    """How a table is read; the keys of [data] (config/schema.py)."""

    label: str
    client: str | None = None
    drop: Sequence[str] = ()
    missing: Sequence[str] = ()
    fill: str | None = None
    categories: Sequence[str] | None = None
    merge: Mapping[str, Sequence[str]] | None = None


def find_missing(cells: Sequence[str], codes: Collection[str] = ()) -> Flags:
    """Return which cells [N] stand for a missing value: `MISSING`, NaN, or one of `codes`."""
    texts = {*MISSING, *(code.strip().lower() for code in codes)}
    numbers = {number for number in map(to_number, codes) if number == number}
    return np.array([cell.lower() in texts or to_number(cell) in numbers for cell in cells], bool)


def encode_columns(
    table: Cells, columns: Sequence[int], train: Flags, options: TableOptions
) -> Floats:
    """Return the numbers [N, F] of a table's columns.

    Fill values and categories come from the rows that `train` [N] marks.
    """
    cells = {column: table.column(column) for column in columns}
    gaps = {column: find_missing(cells[column], options.missing) for column in columns}
    _check_gaps(table, gaps, options.fill)
    parts = []
    for column in columns:
        texts, gap = cells[column], gaps[column]
        require(
            bool((train & ~gap).any()),
            f"{table.path}, column '{table.header[column]}': no training row has a value: leave "
            "the column out with data.drop",
        )
        if _is_category(table.header[column], texts, gap, options.categories):
            parts.append(_encode_category(table, column, texts, gap, train))
            continue
        parts.append(encode_numbers(table, column, texts, gap, train))
        if options.fill == "indicate" and gap.any():
            parts.append(gap[:, None].astype(np.float64))
    return np.concatenate(parts, 1)


def _check_gaps(table: Cells, gaps: dict[int, Flags], fill: str | None) -> None:
    """Refuse missing values unless they are to be filled; say what is filled."""
    counts = {column: int(gap.sum()) for column, gap in gaps.items() if gap.any()}
    if not counts:
        return
    where = list_some([f"'{table.header[column]}' {count}" for column, count in counts.items()])
    if fill is None:
        column = min(counts, key=lambda column: int(gaps[column].argmax()))
        row = int(gaps[column].argmax())
        raise UserError(
            f"{table.locate(row, column)}: '{table.rows[row][column]}' is a missing value (missing "
            f"in all: {where}): fill them with data.fill = 'mean' or 'indicate', or leave columns "
            "out with data.drop"
        )
    logger.warning("%s: filled %d missing cells: %s", table.path, sum(counts.values()), where)


def _is_category(
    name: str, texts: list[str], gap: Flags, categories: Collection[str] | None
) -> bool:
    """Return whether a column is named as categories, or has no number at all."""
    if categories is not None:
        return name in categories
    present = (text for text, missing in zip(texts, gap, strict=True) if not missing)
    return all(np.isnan(to_number(text)) for text in present)


def _encode_category(
    table: Cells, column: int, texts: list[str], gap: Flags, train: Flags
) -> Floats:
    """Return a column of 0 and 1 for each category [N, values]; missing ones are one of them."""
    pairs = zip(texts, gap, strict=True)
    cells = ["missing" if missing else _write_plainly(text) for text, missing in pairs]
    values, _ = encode_labels([cell for cell, seen in zip(cells, train, strict=True) if seen])
    require(
        len(values) <= MANY_CATEGORIES and (len(values) <= 10 or 2 * len(values) <= train.sum()),
        f"{table.path}, column '{table.header[column]}': {len(values)} different values in "
        f"{train.sum()} rows are no categories: leave the column out with data.drop",
    )
    return np.stack([np.array(cells) == value for value in values], 1).astype(np.float64)


def _write_plainly(text: str) -> str:
    """Return "3" for "3.0" too: files write one category in several ways."""
    number = to_number(text)
    return text if np.isnan(number) else f"{number:g}"


def encode_numbers(table: Cells, column: int, texts: list[str], gap: Flags, train: Flags) -> Floats:
    """Return a column of numbers [N, 1]; missing ones are the mean of the training rows."""
    numbers = np.array([to_number(text) for text in texts])
    bad = np.flatnonzero(~gap & ~(np.abs(numbers) <= np.finfo(np.float32).max))
    if len(bad):
        raise UserError(
            f"{table.locate(int(bad[0]), column)}: '{texts[bad[0]]}' is not a number, or not one "
            "that float32 can hold: correct it, add it to data.missing if it means a missing "
            "value, or name the column in data.categories"
        )
    _check_precision(f"{table.path}, column '{table.header[column]}'", numbers[~gap])
    numbers[gap] = numbers[train & ~gap].mean() if gap.any() else 0.0
    return numbers[:, None]


def _check_precision(where: str, numbers: Floats) -> None:
    """Refuse numbers whose differences float32 cannot hold, such as seconds since 1970."""
    mean, std = abs(numbers.mean()), numbers.std()
    require(
        not std > 0 or mean <= MAX_OFFSET * std,
        f"{where}: the values are around {mean:g} and differ by about {std:g}, which float32 "
        "cannot tell apart: subtract a constant",
    )
