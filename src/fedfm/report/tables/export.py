"""A table for programs: a record for each number, with the runs behind it."""

import json
from typing import Any

from fedfm.core.tables import to_csv
from fedfm.report.tables.notes import write_notes
from fedfm.report.tables.table import Entry, Table


def as_json(table: Table) -> str:
    """Return the numbers, their runs, the notes and the missing cells."""
    content = {
        "recipe": table.recipe.name,
        "title": table.caption,
        "paper": table.recipe.paper,
        "about": table.recipe.about,
        "reduced": table.quick,
        "seeds": table.recipe.seeds,
        "rows": table.recipe.rows,
        "columns": table.recipe.columns,
        "baseline": table.baseline,
        "cells": [
            _make_record(entry) | {"runs": _describe_runs(entry)}
            for entry in table.entries.values()
        ],
        "missing": [dict(labels) for labels in table.missing],
        "altered": [dict(labels) for labels in table.altered],
        "notes": write_notes(table, marks=False),
    }
    return json.dumps(content, indent=2) + "\n"


def as_csv(table: Table) -> str:
    """Return a line for each number; seeds, digests and folders are joined by semicolons."""
    heads = {"table": table.caption, "recipe": table.recipe.name, "reduced": table.quick}
    records = [
        heads
        | record.pop("labels")
        | record
        | {"other_settings": entry.labels in table.altered}
        | _join_runs(entry)
        for entry in table.entries.values()
        for record in [_make_record(entry)]
    ]
    return to_csv(records, heads)


def _make_record(entry: Entry) -> dict[str, Any]:
    """Return the numbers of an entry, accuracies in percent."""
    comparison = entry.comparison
    return {
        "labels": dict(entry.labels),
        "measure": entry.measure.name,
        "heading": entry.measure.heading,
        "mean": entry.mean,
        "deviation": entry.deviation,
        "n": len(entry.values),
        "rank": entry.rank or None,
        "paper_mean": entry.paper.mean if entry.paper else None,
        "paper_deviation": entry.paper.deviation if entry.paper else None,
        "difference": entry.difference,
        "p": comparison.p if comparison else None,
        "pairs": comparison.pairs if comparison else None,
    }


def _describe_runs(entry: Entry) -> list[dict[str, Any]]:
    return [
        {
            "seed": run.seed,
            "value": entry.values.get(run.seed),
            "digest": run.digest,
            "folder": run.folder,
            "versions": run.versions,
            "finished": run.finished,
        }
        for run in entry.runs
    ]


def _join_runs(entry: Entry) -> dict[str, str]:
    runs = _describe_runs(entry)
    return {
        f"{name}s": ";".join(str(run[name]) for run in runs)
        for name in ("seed", "digest", "folder")
    }
