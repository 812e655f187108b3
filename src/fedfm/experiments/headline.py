"""The README's first screen: the main table and one picture, once there are results."""

import os
from pathlib import Path

from fedfm.core.checkpoint import write_atomically
from fedfm.experiments.budget import in_words
from fedfm.experiments.document import Document
from fedfm.experiments.document_parts import NOT_RUN, grid, machines, seconds
from fedfm.experiments.table_formats import MARKDOWN
from fedfm.experiments.table_parts import Entry, Table

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
    link = os.path.relpath(made.path, folder)
    said = (
        f"CIFAR-10 under the paper's protocol, test accuracy in percent (in brackets the paper's): "
        f"{len(runs)} runs, {in_words(seconds(runs))} on {machine}. [Everything that was measured, "
        f"and the command for each number]({link}).\n"
    )
    picture = made.picture("lite")
    drawn = picture.exists() and any(e.runs for e in made.tables["lite"].entries.values())
    image = f"\n![accuracy against floats sent]({os.path.relpath(picture, folder)})\n"
    return f"{_table(table)}\n{said}{image if drawn else ''}"


def _table(table: Table) -> str:
    heads = [table.row_head, *(column.labels[-1] for column in table.columns)]
    rows = (
        [" / ".join(row), *(_cell(entry, table.seeds) for entry in entries)]
        for row, entries in table.lines
    )
    return grid(heads, rows)


def _cell(entry: Entry | None, seeds: int) -> str:
    if entry is None or entry.mean is None:
        return NOT_RUN
    paper = f" ({entry.measure.text(entry.paper.mean)})" if entry.paper else ""
    return MARKDOWN.ours(entry, seeds) + paper
