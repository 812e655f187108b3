"""Read the cells of tables: a CSV, TSV or Parquet file, or a folder with a file for each client."""

import csv
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from fedfm.core.errors import (
    UserError,
    list_some,
    missing_package_error,
    require,
    unknown_name_error,
)

TEXT_FILES = (".csv", ".tsv", ".txt", ".data")
"""How the names of text tables in a folder end; cells of .tsv files are separated by tabs."""
Row = tuple[int, list[str]]
"""A row's line number and its cells."""


@dataclass(frozen=True)
class Cells:
    """The cells of one or several files that have the same columns."""

    path: Path
    """Where they are."""
    header: list[str]
    """The names of the columns."""
    rows: list[list[str]]
    """The cells [N][columns], as text."""
    places: list[tuple[Path, int]]
    """The file and the line of each row."""
    files: list[str]
    """The name of each row's file, without its suffix; empty if `path` is a file."""

    def find(self, column: str, what: str) -> int:
        """Return the index of a column; refuse one that is not there, or there twice."""
        if column not in self.header:
            raise unknown_name_error(f"{what} column (in {self.path})", column, self.header)
        twice = self.header.count(column) > 1
        require(not twice, f"{self.path} has two columns '{column}': rename one")
        return self.header.index(column)

    def column(self, index: int) -> list[str]:
        """Return the cells [N] of a column."""
        return [cells[index] for cells in self.rows]

    def locate(self, row: int, column: int) -> str:
        """Return where a cell is, for an error message."""
        path, line = self.places[row]
        return f"{path}, row {line}, column '{self.header[column]}'"


Reader = Callable[[Path], tuple[list[str], list[Row]]]


def read_text_files(path: Path, header: bool) -> Cells:
    """Read a CSV or TSV file, or a folder of them."""
    return _read(path, TEXT_FILES, partial(_read_text, has_header=header))


def read_parquet_files(path: Path) -> Cells:
    """Read a Parquet file, or a folder of them."""
    return _read(path, (".parquet",), _read_parquet)


def _read(path: Path, suffixes: tuple[str, ...], read: Reader) -> Cells:
    if not path.is_dir():
        header, rows = read(path)
        _check_rows(path, header, rows)
        lines, cells = [line for line, _ in rows], [cells for _, cells in rows]
        return Cells(path, header, cells, [(path, line) for line in lines], [])
    parts = []
    for file in _list_files(path, suffixes):
        header, rows = read(file)
        _check_rows(file, header, rows)
        parts.append((file, header, rows))
    return _join(path, parts)


def _list_files(path: Path, suffixes: tuple[str, ...]) -> list[Path]:
    """Return the tables in a folder, one for each client."""
    files = sorted(file for file in path.iterdir() if not file.name.startswith("."))
    for file in files:
        require(
            file.is_file() and file.suffix.lower() in suffixes,
            f"{file} is not a table ({', '.join(suffixes)}): remove it",
        )
    require(
        len(files) > 1,
        f"{path} has {len(files)} tables ({', '.join(suffixes)}): a folder needs one for each of "
        "at least two clients",
    )
    return files


def _join(path: Path, parts: list[tuple[Path, list[str], list[Row]]]) -> Cells:
    """Put the rows of several files together, their columns in the order of the first file."""
    first, header, _ = parts[0]
    cells: list[list[str]] = []
    places: list[tuple[Path, int]] = []
    files: list[str] = []
    for file, names, rows in parts:
        differing = sorted({*names} ^ {*header})
        require(
            sorted(names) == sorted(header),
            f"{file} and {first} differ in their columns ({list_some(differing)}): give all files "
            "the same",
        )
        order = [names.index(name) for name in header]
        cells += [[row[index] for index in order] for _, row in rows]
        places += [(file, line) for line, _ in rows]
        files += [file.stem] * len(rows)
    return Cells(path, header, cells, places, files)


def _check_rows(path: Path, header: list[str], rows: list[Row]) -> None:
    require(
        len(header) != 1 or ";" not in header[0],
        f"{path} has one column, '{''.join(header)}': separate cells by commas, not by ';', and "
        "write decimals with a point",
    )
    require(len(rows) > 0, f"{path} has no rows below its header")
    for line, cells in rows:
        difference = f"{len(cells)} cells, but the header has {len(header)}"
        require(len(cells) == len(header), f"{path}, row {line}: {difference}")


def _read_text(path: Path, has_header: bool) -> tuple[list[str], list[Row]]:
    """Return the header and the rows of a CSV or TSV file."""
    require(
        path.suffix.lower() != ".parquet", f"{path} is a Parquet file: write data.name = 'parquet'"
    )
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            reader = csv.reader(stream, delimiter="\t" if path.suffix.lower() == ".tsv" else ",")
            rows = [(reader.line_num, list(map(str.strip, cells))) for cells in reader if cells]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        hint = "; save it as UTF-8" if isinstance(error, UnicodeDecodeError) else ""
        raise UserError(f"cannot read {path.resolve()} as a CSV table: {error}{hint}") from error
    if has_header:
        return (rows[0][1], rows[1:]) if rows else ([], [])
    return [str(number + 1) for number in range(len(rows[0][1]) if rows else 0)], rows


def _read_parquet(path: Path) -> tuple[list[str], list[Row]]:
    """Return the columns' names and the rows of a Parquet file."""
    try:
        parquet = import_module("pyarrow.parquet")
    except ImportError as problem:
        raise missing_package_error("Parquet files need pyarrow", "parquet") from problem
    try:
        table = parquet.read_table(path)
    except (OSError, ValueError) as error:  # pyarrow's own errors are among them
        reason = str(error).splitlines()[0]
        raise UserError(f"cannot read {path.resolve()} as a Parquet table: {reason}") from error
    columns: Iterable[list[Any]] = (column.to_pylist() for column in table.columns)
    rows = zip(*([_to_cell(value) for value in column] for column in columns), strict=True)
    return list(table.column_names), [(line, list(cells)) for line, cells in enumerate(rows, 1)]


def _to_cell(value: Any) -> str:
    """Return a value as a text table would have it."""
    if value is None:
        return ""
    return str(int(value)) if isinstance(value, bool) else str(value).strip()


def to_number(cell: str) -> float:
    """Return a cell as a number; NaN if it is none."""
    try:
        return float(cell)
    except ValueError:
        return math.nan
