"""Render the sections of the document: a line for each cell of a recipe."""

import json
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

from fedfm.grid.budget import format_duration
from fedfm.grid.recipe import Recipe
from fedfm.grid.store import Summary
from fedfm.paper.catalogue import load_recipe
from fedfm.paper.plan import Section
from fedfm.report.tables.choice import choose_settings
from fedfm.report.tables.formats import escape_markdown, format_markdown_table
from fedfm.report.tables.table import Entry, Table

NOT_RUN = "not run"
Cells = dict[tuple[str, ...], list[Entry]]
"""By its labels, a cell's entries: one for each measure."""


def render_section(part: Section, table: Table, words: Sequence[str], picture: Path) -> str:
    """Render a recipe: its subject, its cells, what was chosen, its picture."""
    recipe = load_recipe(part.recipe)
    lines = [
        f"## {recipe.paper}: {recipe.title} (`{recipe.name}`)\n",
        f"{recipe.about}\n",
        format_markdown_table(
            _list_heads(table),
            (_format_row(recipe, entries, words) for entries in group_entries(table).values()),
        ),
    ]
    if part.selection.output == "choice":
        choices = [each.words for each in choose_settings(part.selection, table)] or ["nothing yet"]
        lines.append(f"Chosen: {'; '.join(choices)}.\n")
    if picture.exists():
        lines.append(f"![{recipe.title}]({picture.name})\n")
    return "\n".join(lines)


def group_entries(table: Table) -> Cells:
    """Return the cells of a table."""
    cells: Cells = {}
    for entry in table.entries.values():
        cells.setdefault(tuple(entry.labels.values()), []).append(entry)
    return cells


def sum_seconds(runs: Iterable[Summary]) -> float:
    """Sum what runs took by the clock, or else in their rounds."""
    return sum(run.clock or run.totals.get("seconds", 0.0) for run in runs)


def name_machines(results: Path, runs: Iterable[Summary]) -> list[str]:
    """Return the names of the devices that runs were made on."""
    paths = {results / run.folder / "machine.json" for run in runs}
    names = {json.loads(path.read_text())["name"] for path in paths if path.exists()}
    return [f"one {name}" for name in sorted(names)]


def _list_heads(table: Table) -> list[str]:
    measures = list(dict.fromkeys(column.measure for column in table.columns))
    numbers = ["paper", f"ours, {measures[0].heading}", "difference"]
    if len(measures) > 1:
        kinds = ("paper", "ours", "difference")
        numbers = [f"{kind}, {measure.heading}" for measure in measures for kind in kinds]
    return [*table.recipe.axes, *numbers, "seeds", "time", "command"]


def _format_row(recipe: Recipe, entries: Sequence[Entry], words: Sequence[str]) -> list[str]:
    first = entries[0]
    numbers = [text for entry in entries for text in _format_numbers(entry)]
    time = format_duration(sum_seconds(first.runs)) if first.runs else ""
    command = _format_command(recipe, first, words)
    labels = [escape_markdown(label) for label in first.labels.values()]
    return [*labels, *numbers, str(len(first.runs)), time, f"`{command}`"]


def _format_numbers(entry: Entry) -> list[str]:
    """Return the paper's number, ours and the difference."""
    measure, paper = entry.measure, entry.paper
    theirs = "" if paper is None else measure.text(paper.mean) + measure.spread(paper.deviation)
    ours = NOT_RUN
    if entry.mean is not None:
        ours = measure.text(entry.mean) + measure.spread(entry.deviation)
    less = "" if entry.difference is None else measure.text(entry.difference, "+")
    return [theirs, ours, less]


def _format_command(recipe: Recipe, entry: Entry, words: Sequence[str]) -> str:
    """Return the command that runs a cell again."""
    only = [
        word
        for axis, label in entry.labels.items()
        if len(recipe.axes[axis]) > 1
        for word in ("--only", label)
    ]
    few = len(entry.runs) or recipe.seeds
    seeds = ["--seeds", str(few)] if few != recipe.seeds else []
    return shlex.join(["fedfm", "table", recipe.name, *only, *seeds, *words, "--results", "again"])
