"""Render the sections of the document: a line for each cell of a recipe."""

import json
import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedfm.grid.budget import format_duration
from fedfm.grid.recipe import Recipe
from fedfm.grid.store import DRAWN_FILE, Summary
from fedfm.paper.catalogue import load_recipe
from fedfm.paper.evidence import Evidence, make_anchor, make_title
from fedfm.paper.plan import Section
from fedfm.report.tables.formats import escape_markdown, format_markdown_table
from fedfm.report.tables.table import Entry, Table
from fedfm.report.tables.tuned_settings import choose_settings

NOT_RUN = "not run"
JPEG = "JPEG images"
Cells = dict[tuple[str, ...], list[Entry]]
"""By its labels, a cell's entries: one for each measure."""


@dataclass(frozen=True)
class Renderer:
    """Renders sections for a document at a path."""

    path: Path
    exact: Evidence
    jpeg: Evidence | None

    def render(self, part: Section, pictures: Mapping[str, Path]) -> str:
        """Render a recipe: its subject, its cells, what was chosen, its pictures by caption."""
        recipe, table = load_recipe(part.recipe), self.exact.tables[part.recipe]
        lines = [
            f"## {recipe.paper}: {recipe.title} (`{recipe.name}`)\n",
            f"{recipe.about}\n",
            self._render_cells(table),
        ]
        if table.recipe.output == "choice":
            choices = [each.words for each in choose_settings(table.recipe, table)]
            lines.append(f"The best so far: {'; '.join(choices) or 'nothing yet'}.\n")
        lines += [f"![{caption}]({path.name})\n" for caption, path in pictures.items()]
        return "\n".join(lines)

    def _render_cells(self, table: Table) -> str:
        if table.recipe.output in ("partitions", "clients"):
            return render_outputs_without_runs(self.exact.folder / table.recipe.name)
        cells = group_entries(table).values()
        earlier = self._find_earlier(table)
        rows = [self._format_row(table.recipe, entries, earlier) for entries in cells]
        return format_markdown_table(_list_heads(table, bool(earlier)), rows)

    def _find_earlier(self, table: Table) -> Cells:
        """Return the cells of the runs on JPEG images, if there are any runs among them."""
        cells = group_entries(self.jpeg.tables[table.recipe.name]) if self.jpeg else {}
        return cells if any(entries[0].runs for entries in cells.values()) else {}

    def _format_row(self, recipe: Recipe, entries: Sequence[Entry], earlier: Cells) -> list[str]:
        first = entries[0]
        before: Sequence[Entry] = earlier.get(tuple(first.labels.values()), ())
        numbers = [text for entry in entries for text in _format_numbers(entry)]
        jpeg = [_format_ours(entry) for entry in before] or ["" for _ in entries]
        runs = self._link_runs(self.exact, first.runs)
        if earlier:
            numbers += jpeg
            runs = [*runs, *self._link_runs(self.jpeg, before[0].runs if before else ())]
        time = format_duration(sum_seconds(first.runs)) if first.runs else ""
        anchor = make_anchor(recipe.name, make_title(first))
        labels = [escape_markdown(label) for label in first.labels.values()]
        labels[0] = f'<a id="{anchor}"></a>{labels[0]}'
        return [*labels, *numbers, " ".join(runs), time, f"`{_format_command(recipe, first)}`"]

    def _link_runs(self, evidence: Evidence | None, runs: Iterable[Summary]) -> list[str]:
        """Return a link to each run's folder, named by its seed."""
        word = "" if evidence is self.exact else "JPEG "
        return [
            f"[{word}{run.seed}]({os.path.relpath(evidence.folder / run.folder, self.path.parent)})"
            for run in runs
            if evidence
        ]


def render_outputs_without_runs(folder: Path) -> str:
    """Render what was drawn without runs of the grid."""
    record = folder / DRAWN_FILE
    if not record.exists():
        return f"Not drawn yet: `fedfm table {folder.name}`.\n"
    rows = [
        {key: value for key, value in row.items() if key != "picture"}
        for row in json.loads(record.read_text())
    ]
    return format_markdown_table([*rows[0]], [[str(v) for v in row.values()] for row in rows])


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


def _list_heads(table: Table, earlier: bool) -> list[str]:
    measures = list(dict.fromkeys(column.measure for column in table.columns))
    numbers, before = ["paper", f"ours, {measures[0].heading}", "difference"], [JPEG]
    if len(measures) > 1:
        kinds = ("paper", "ours", "difference")
        numbers = [f"{kind}, {measure.heading}" for measure in measures for kind in kinds]
        before = [f"{JPEG}, {measure.heading}" for measure in measures]
    return [*table.recipe.axes, *numbers, *(before if earlier else ()), "runs", "time", "command"]


def _format_numbers(entry: Entry) -> list[str]:
    """Return the paper's number, ours and the difference."""
    measure, paper = entry.measure, entry.paper
    theirs = "" if paper is None else measure.text(paper.mean) + measure.spread(paper.deviation)
    less = "" if entry.difference is None else measure.text(entry.difference, "+")
    return [theirs, _format_ours(entry) or NOT_RUN, less]


def _format_ours(entry: Entry) -> str:
    if entry.mean is None:
        return ""
    return entry.measure.text(entry.mean) + entry.measure.spread(entry.deviation)


def _format_command(recipe: Recipe, entry: Entry) -> str:
    """Return the command that runs a cell again, without the options that all share."""
    only = [
        word
        for axis, label in entry.labels.items()
        if len(recipe.axes[axis]) > 1
        for word in ("--only", label)
    ]
    few = len(entry.runs) or recipe.seeds
    seeds = ["--seeds", str(few)] if few != recipe.seeds else []
    return shlex.join(["fedfm", "table", recipe.name, *only, *seeds])
