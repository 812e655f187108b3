"""The README's first screen: the main table and one picture, once there are results."""

import os
from collections.abc import Sequence
from pathlib import Path

from fedfm.core.checkpoint import write_atomically
from fedfm.grid.budget import in_words
from fedfm.paper.document import Document
from fedfm.paper.sections import NOT_RUN, grid, machines, seconds
from fedfm.report.tables.formats import MARKDOWN
from fedfm.report.tables.table import Entry, Table

BEGIN, END = "<!-- headline -->", "<!-- end of headline -->"
NEEDED = ("FedAvg", "FedFM")
"""Without these two there is nothing to compare."""


def write_headline(made: Document, readme: Path) -> bool:
    """Put the headline between its markers, or at first before the README's first code."""
    table = made.tables["main"]
    run = {entry.labels["method"] for entry in table.entries.values() if entry.runs}
    if not run.issuperset(NEEDED):
        return False
    text, block = readme.read_text(), f"{BEGIN}\n{headline(made, readme)}{END}"
    if BEGIN in text and END in text:
        before, rest = text.split(BEGIN, 1)
        text = before + block + rest.split(END, 1)[1]
    else:
        before, fence, after = text.partition("```")
        text = f"{before}{block}\n\n{fence}{after}"
    write_atomically(readme, text.encode())
    return True


def headline(made: Document, readme: Path) -> str:
    """The main table with the paper's numbers, how long it took, and accuracy against traffic."""
    table, folder = made.tables["main"], readme.parent
    runs = {run.key: run for entry in table.entries.values() for run in entry.runs}.values()
    machine = " and ".join(machines(made.results, runs)) or "one machine"
    link, shown = os.path.relpath(made.path, folder), _table(table)
    starred = f" {MARKDOWN.star} p < 0.05 against FedAvg, of few seeds a hint."
    files = any(run.config["data"]["name"] == "folder" for run in runs)
    said = (
        f"CIFAR-10{' as image files' if files else ''} under the paper's protocol, test accuracy "
        f"in percent (in brackets the paper's): {len(runs)} runs, {in_words(seconds(runs))} on "
        f"{machine}.{starred if MARKDOWN.star in shown else ''}{_missing(table)} "
        f"[Everything that was measured, and the command for each number]({link}).\n"
    )
    picture, lite = made.picture("lite"), made.tables["lite"]
    drawn = picture.exists() and any(entry.runs for entry in lite.entries.values())
    image = f"\n![accuracy against floats sent]({os.path.relpath(picture, folder)})\n"
    return f"{shown}\n{said}{image + _thrift(lite) if drawn else ''}"


def _table(table: Table) -> str:
    heads = [table.row_head, *(column.labels[-1] for column in table.columns)]
    rows = (
        [" / ".join(row), *(_cell(entry, table.seeds) for entry in entries)]
        for row, entries in table.lines
        if _run(entries)
    )
    return grid(heads, rows)


def _thrift(table: Table) -> str:
    """What the rows that send less than FedAvg have, and how much less they send."""
    floats = {row: sent.mean for row, (_, sent) in table.lines if sent and sent.mean}
    usual = floats.get(("FedAvg",), 0.0)
    told = [
        f"{accuracy.mean:.2f} % for {100 * floats[row] / usual:.0f} % ({row[0]}; "
        f"n={len(accuracy.values)})"
        for row, (accuracy, _) in table.lines
        if accuracy and accuracy.mean and floats[row] < usual
    ]
    return f"\nAccuracy for a part of FedAvg's floats: {', '.join(told)}.\n" if told else ""


def _missing(table: Table) -> str:
    rows = [" / ".join(row) for row, entries in table.lines if not _run(entries)]
    return f" Not run yet: {', '.join(rows)}." if rows else ""


def _run(entries: Sequence[Entry | None]) -> bool:
    return any(entry is not None and entry.runs for entry in entries)


def _cell(entry: Entry | None, seeds: int) -> str:
    if entry is None or entry.mean is None:
        return NOT_RUN
    paper = f" ({entry.measure.text(entry.paper.mean)})" if entry.paper else ""
    return MARKDOWN.ours(entry, seeds) + paper
