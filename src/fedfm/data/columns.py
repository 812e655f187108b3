"""Turn the columns of a table into numbers: missing values are filled, categories become 0/1."""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedfm.core.errors import UserError, list_some, require
from fedfm.data.preprocessing import encode_labels
from fedfm.data.table_files import Cells, to_number

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
    fill: str | Mapping[str, float] | None = None
    """How missing numbers are filled, or the number for each column."""
    categories: Sequence[str] | Mapping[str, Sequence[str]] | None = None
    """The columns of categories, or the categories of each."""
    merge: Mapping[str, Sequence[str]] | None = None


def find_missing(cells: Sequence[str], codes: Collection[str] = ()) -> Flags:
    """Return which cells [N] stand for a missing value: `MISSING`, NaN, or one of `codes`."""
    texts = {*MISSING, *(code.strip().lower() for code in codes)}
    numbers = {number for number in map(to_number, codes) if number == number}
    return np.array([cell.lower() in texts or to_number(cell) in numbers for cell in cells], bool)


class ColumnEncoding(NamedTuple):
    """How a column of a table becomes numbers, as training rows decided it."""

    name: str
    categories: tuple[str, ...] = ()
    """The texts that become columns of 0 and 1; none for a column of numbers."""
    fill: float | None = None
    """The number in the place of a missing one; None: it is refused."""
    indicated: bool = False
    """Whether a further column says where values are missing."""
    missing: tuple[str, ...] = ()
    """Further texts that stand for a missing value."""


def fit_columns(
    table: Cells, columns: Sequence[int], train: Flags, options: TableOptions
) -> tuple[ColumnEncoding, ...]:
    """Return how a table's columns become numbers.

    Fill values and categories come from the rows that `train` [N] marks, unless they are given.
    """
    cells = {column: table.column(column) for column in columns}
    gaps = {column: find_missing(cells[column], options.missing) for column in columns}
    given = options.categories if isinstance(options.categories, Mapping) else {}
    fills = options.fill if isinstance(options.fill, Mapping) else {}
    _check_gaps(table, gaps, options.fill, {*given, *fills})
    fitted = []
    for index in columns:
        name, texts, gap = table.header[index], cells[index], gaps[index]
        where = f"{table.path}, column '{name}'"
        require(
            bool((train & ~gap).any()) or name in {*given, *fills},
            f"{where}: no training row has a value: leave the column out with data.drop",
        )
        column = ColumnEncoding(name, missing=tuple(options.missing))
        if name in given:
            fitted.append(
                column._replace(categories=_check_categories(where, texts, gap, given[name]))
            )
            continue
        if name not in fills and _is_category(name, texts, gap, options.categories):
            fitted.append(column._replace(categories=_fit_categories(where, texts, gap, train)))
            continue
        numbers = _read_numbers(table, index, texts, gap)
        if not gap.all():
            _check_precision(where, numbers[~gap])
        if isinstance(options.fill, str):
            fill: float | None = float(numbers[train & ~gap].mean())
        else:
            fill = fills.get(name)
        indicated = options.fill == "indicate" and bool(gap.any())
        fitted.append(column._replace(fill=fill, indicated=indicated))
    return tuple(fitted)


def encode_columns(table: Cells, columns: Sequence[ColumnEncoding]) -> Floats:
    """Return the numbers [N, F] of a table's columns, found by name."""
    parts = []
    for column in columns:
        index = table.find(column.name, "feature")
        texts = table.column(index)
        gap = find_missing(texts, column.missing)
        if column.categories:
            plain = np.array(_write_categories(texts, gap))
            parts.append(np.stack([plain == value for value in column.categories], 1).astype(float))
            continue
        where = table.locate(int(gap.argmax()), index)
        refused = column.fill is None and bool(gap.any())
        require(not refused, f"{where}: the value is missing: fill it in, or leave the row out")
        numbers = _read_numbers(table, index, texts, gap)
        numbers[gap] = column.fill or 0.0
        parts.append(numbers[:, None])
        if column.indicated:
            parts.append(gap[:, None].astype(float))
    return np.concatenate(parts, 1)


def name_inputs(columns: Sequence[ColumnEncoding]) -> tuple[str, ...]:
    """Return a name for each number [F] that `encode_columns` makes of a row."""
    names = []
    for column in columns:
        names += [f"{column.name} = {value}" for value in column.categories] or [column.name]
        names += [f"{column.name} missing"] * column.indicated
    return tuple(names)


def _check_gaps(
    table: Cells,
    gaps: dict[int, Flags],
    fill: str | Mapping[str, float] | None,
    given: Collection[str],
) -> None:
    """Refuse missing values unless they are to be filled; say what is filled.

    For the columns in `given` fill values or categories are given.
    """
    counts = {column: int(gap.sum()) for column, gap in gaps.items() if gap.any()}
    if not counts:
        return
    where = list_some([f"'{table.header[column]}' {count}" for column, count in counts.items()])
    if not isinstance(fill, str):
        counts = {column: n for column, n in counts.items() if table.header[column] not in given}
        if not counts:
            return
        column = min(counts, key=lambda column: int(gaps[column].argmax()))
        row = int(gaps[column].argmax())
        raise UserError(
            f"{table.locate(row, column)}: '{table.rows[row][column]}' is a missing value (missing "
            f"in all: {where}): fill them with data.fill = 'mean' or 'indicate', give a number for "
            "the column in [data.fill], or leave columns out with data.drop"
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


def _fit_categories(where: str, texts: list[str], gap: Flags, train: Flags) -> tuple[str, ...]:
    """Return the categories of training rows; a missing value is one of them."""
    cells = _write_categories(texts, gap)
    values, _ = encode_labels([cell for cell, seen in zip(cells, train, strict=True) if seen])
    require(
        len(values) <= MANY_CATEGORIES and (len(values) <= 10 or 2 * len(values) <= train.sum()),
        f"{where}: {len(values)} different values in {train.sum()} rows are no categories: leave "
        "the column out with data.drop",
    )
    return values


def _check_categories(
    where: str, texts: list[str], gap: Flags, given: Sequence[str]
) -> tuple[str, ...]:
    """Return categories that are given; refuse a cell with another one."""
    known = tuple(map(_write_plainly, given))
    strange = sorted({*_write_categories(texts, gap)} - {*known})
    require(
        not strange,
        f"{where}: {list_some(strange)} is not among the categories that data.categories gives "
        f"({list_some(known)}): correct the cells, or add it there",
    )
    return known


def _write_categories(texts: list[str], gap: Flags) -> list[str]:
    pairs = zip(texts, gap, strict=True)
    return ["missing" if missing else _write_plainly(text) for text, missing in pairs]


def _write_plainly(text: str) -> str:
    """Return "3" for "3.0" too: files write one category in several ways."""
    number = to_number(text)
    return text if np.isnan(number) else f"{number:g}"


def _read_numbers(table: Cells, column: int, texts: list[str], gap: Flags) -> Floats:
    """Return a column of numbers [N]; those that `gap` marks have no meaning."""
    numbers = np.array([to_number(text) for text in texts])
    bad = np.flatnonzero(~gap & ~(np.abs(numbers) <= np.finfo(np.float32).max))
    if len(bad):
        raise UserError(
            f"{table.locate(int(bad[0]), column)}: '{texts[bad[0]]}' is not a number, or not one "
            "that float32 can hold: correct it, add it to data.missing if it means a missing "
            "value, or name the column in data.categories"
        )
    return numbers


def _check_precision(where: str, numbers: Floats) -> None:
    """Refuse numbers whose differences float32 cannot hold, such as seconds since 1970."""
    mean, std = abs(numbers.mean()), numbers.std()
    require(
        not std > 0 or mean <= MAX_OFFSET * std,
        f"{where}: the values are around {mean:g} and differ by about {std:g}, which float32 "
        "cannot tell apart: subtract a constant",
    )
