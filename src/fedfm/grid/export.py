"""Results as flat tables for other tools: CSV always, Parquet with the extra `parquet`.

One row per result: a run, and a cell of a table that shows it. Nested values, the config above all,
have dotted names such as `config.training.lr`. The rounds are a table of their own, joined by
`folder`.
"""

import importlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedfm.core.checkpoint import write_atomically
from fedfm.core.errors import not_installed, require
from fedfm.core.tables import flatten_keys, to_csv
from fedfm.grid.rounds import rounds_of
from fedfm.grid.store import Store, Summary

Row = dict[str, Any]
SUFFIXES = (".csv", ".parquet")
KINDS = (({bool}, "boolean"), ({int}, "Int64"), ({int, float}, "Float64"))
"""The types that a column's values have, and its type in a frame; anything else is text."""


def export(store: Store, path: Path, rounds: bool = False) -> list[Path]:
    """Write the runs to `path`, and with `rounds` their rounds to NAME-rounds beside it."""
    require(
        path.suffix in SUFFIXES, f"results are exported to .csv or .parquet, not '{path.suffix}'"
    )
    tables = {path: run_rows(store)}
    if rounds:
        tables[path.with_stem(f"{path.stem}-rounds")] = round_rows(store)
    path.parent.mkdir(parents=True, exist_ok=True)
    for each, rows in tables.items():
        write_atomically(each, _csv(rows) if path.suffix == ".csv" else _parquet(rows))
    return list(tables)


def to_frame(store: Store, rounds: bool = False) -> Any:
    """The runs, or with `rounds` their rounds, as a `pandas.DataFrame`."""
    return _frame(round_rows(store) if rounds else run_rows(store))


def run_rows(store: Store) -> list[Row]:
    """A flat row for every result."""
    summaries = store.summaries()
    require(bool(summaries), f"{store.folder} holds no results; `fedfm table NAME` makes some")
    return [_run_row(each) for each in summaries]


def _run_row(summary: Summary) -> Row:
    facts = asdict(summary)
    config = facts.pop("config")  # comes last: it has many keys
    flat = flatten_keys(facts | {"config": config})
    texts = {key: json.dumps(value) for key, value in flat.items() if isinstance(value, list)}
    return {"digest": summary.digest} | flat | texts


def round_rows(store: Store) -> list[Row]:
    """A row for every round of every run; a run that several recipes share is there once."""
    runs = {summary.folder: summary for summary in store.summaries()}
    rows = []
    for run, rounds in rounds_of(store.folder, runs.values()):
        own = {"folder": run.folder, "digest": run.digest, "seed": run.seed, "method": run.method}
        rows += [own | each for each in rounds]
    return rows


def _names(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row))


def _csv(rows: Sequence[Row]) -> bytes:
    return to_csv(rows).encode()


def _parquet(rows: Sequence[Row]) -> bytes:
    _optional("pyarrow")
    found: bytes = _frame(rows).to_parquet(index=False, engine="pyarrow")
    return found


def _frame(rows: Sequence[Row]) -> Any:
    pandas = _optional("pandas")
    columns = {name: [row.get(name) for row in rows] for name in _names(rows)}
    return pandas.DataFrame({name: _series(pandas, each) for name, each in columns.items()})


def _series(pandas: Any, values: Sequence[Any]) -> Any:
    """A column in which a value may be missing, whatever its type is."""
    kinds = {type(value) for value in values} - {type(None)}
    for types, name in KINDS:
        if kinds <= types:
            return pandas.Series(values, dtype=name)
    texts = [value if value is None else str(value) for value in values]
    return pandas.Series(texts, dtype="string")


def _optional(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as problem:
        raise not_installed(f"this needs {name} (CSV needs nothing)", "parquet") from problem
