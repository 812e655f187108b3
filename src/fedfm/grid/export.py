"""Export results as flat tables: CSV always, Parquet with the extra `parquet`.

One row per result: a run, and a cell of a table that shows it. Nested values, such as the config,
have dotted names such as `config.training.lr`. The rounds are a table of their own, joined by
`folder`.
"""

import importlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedfm.core.errors import missing_package_error, require
from fedfm.core.files import write_atomically
from fedfm.core.tables import flatten_keys, to_csv
from fedfm.grid.store import Store, Summary, read_rounds_of_runs
from fedfm.run.records import name_metrics

Row = dict[str, Any]
SUFFIXES = (".csv", ".parquet")
KINDS = (({bool}, "boolean"), ({int}, "Int64"), ({int, float}, "Float64"))
"""The types that a column's values have, and its type in a frame; anything else is text."""


def export(store: Store, path: Path, rounds: bool = False) -> list[Path]:
    """Write the runs to `path`, and with `rounds` their rounds to NAME-rounds beside it."""
    require(
        path.suffix in SUFFIXES, f"results are exported to .csv or .parquet, not '{path.suffix}'"
    )
    tables = {path: collect_run_rows(store)}
    if rounds:
        tables[path.with_stem(f"{path.stem}-rounds")] = collect_round_rows(store)
    path.parent.mkdir(parents=True, exist_ok=True)
    for each, rows in tables.items():
        write_atomically(
            each, to_csv(rows).encode() if path.suffix == ".csv" else _to_parquet(rows)
        )
    return list(tables)


def collect_run_rows(store: Store) -> list[Row]:
    """Return a flat row for every result."""
    summaries = store.summaries()
    require(bool(summaries), f"{store.folder} holds no results; `fedfm table NAME` makes some")
    return [_flatten_run(each) for each in summaries]


def _flatten_run(summary: Summary) -> Row:
    facts = asdict(summary)
    config = facts.pop("config")  # comes last: it has many keys
    flat = flatten_keys(facts | {"config": config})
    texts = {key: json.dumps(value) for key, value in flat.items() if isinstance(value, list)}
    return {"digest": summary.digest} | flat | texts


def collect_round_rows(store: Store) -> list[Row]:
    """Return a row for every round of every run; a run that recipes share counts once."""
    runs = {summary.folder: summary for summary in store.summaries()}
    return [
        {"folder": run.folder, "digest": run.digest, "seed": run.seed, "method": run.method}
        | {key: value for key, value in each.items() if key != "metrics"}
        | name_metrics(each.get("metrics", {}))
        for run, rounds in read_rounds_of_runs(store.folder, runs.values())
        for each in rounds
    ]


def _to_parquet(rows: Sequence[Row]) -> bytes:
    _import_optional("pyarrow")
    content: bytes = to_frame(rows).to_parquet(index=False, engine="pyarrow")
    return content


def to_frame(rows: Sequence[Row]) -> Any:
    """Return rows as a `pandas.DataFrame`; a column of several types becomes text."""
    pandas = _import_optional("pandas")
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: [row.get(name) for row in rows] for name in names}
    return pandas.DataFrame({name: _to_series(pandas, each) for name, each in columns.items()})


def _to_series(pandas: Any, values: Sequence[Any]) -> Any:
    """Return a column in which values of any type may be missing."""
    kinds = {type(value) for value in values} - {type(None)}
    for types, name in KINDS:
        if kinds <= types:
            return pandas.Series(values, dtype=name)
    texts = [value if value is None else str(value) for value in values]
    return pandas.Series(texts, dtype="string")


def _import_optional(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as problem:
        raise missing_package_error(
            f"this needs {name} (CSV needs nothing)", "parquet"
        ) from problem
