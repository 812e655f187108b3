"""The sections of the reproduction's document: a line for each cell of a recipe."""

import json
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

from fedfm.grid.budget import in_words
from fedfm.grid.recipe import Recipe
from fedfm.grid.store import Summary
from fedfm.paper.catalogue import load_recipe
from fedfm.paper.plan import Part
from fedfm.report.tables.choice import choices
from fedfm.report.tables.formats import markdown_row, markdown_text
from fedfm.report.tables.statistics import Measure
from fedfm.report.tables.table import Entry, Table

NOT_RUN = "not run"
Cells = dict[tuple[str, ...], list[Entry]]
"""By its labels, a cell's entries: one for each measure."""


def section(part: Part, table: Table, words: Sequence[str], picture: Path) -> str:
    """A recipe: what it is about, its cells, what was chosen, its picture."""
    recipe = load_recipe(part.recipe)
    lines = [
        f"## {table.paper}: {table.title} (`{table.recipe}`)\n",
        f"{table.about}\n",
        grid(_heads(table), (_row(recipe, entries, words) for entries in cells_of(table).values())),
    ]
    if part.known.output == "choice":
        found = [each.words for each in choices(part.known, table)] or ["nothing yet"]
        lines.append(f"Chosen: {'; '.join(found)}.\n")
    if picture.exists():
        lines.append(f"![{table.title}]({picture.name})\n")
    return "\n".join(lines)


def grid(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown, with a line below."""
    lines = [markdown_row(heads), markdown_row(["---"] * len(heads)), *map(markdown_row, rows)]
    return "\n".join(lines) + "\n"


def cells_of(table: Table) -> Cells:
    """The cells of a table."""
    found: Cells = {}
    for entry in table.entries.values():
        found.setdefault(tuple(entry.labels.values()), []).append(entry)
    return found


def seconds(runs: Iterable[Summary]) -> float:
    """What runs took by the clock; of those whose clock is not known, their rounds."""
    return sum(run.clock or run.totals.get("seconds", 0.0) for run in runs)


def machines(results: Path, runs: Iterable[Summary]) -> list[str]:
    """The names of the devices that runs were made on."""
    paths = {results / run.folder / "machine.json" for run in runs}
    names = {json.loads(path.read_text())["name"] for path in paths if path.exists()}
    return [f"one {name}" for name in sorted(names)]


def _heads(table: Table) -> list[str]:
    measures = list(dict.fromkeys(column.measure for column in table.columns))
    numbers = [
        f"{of}{'' if len(measures) == 1 else f', {measure.heading}'}"
        for measure in measures
        for of in (
            "paper",
            f"ours, {measure.heading}" if len(measures) == 1 else "ours",
            "difference",
        )
    ]
    return [*_axes(table), *numbers, "seeds", "time", "command"]


def _axes(table: Table) -> list[str]:
    return list(next(iter(table.entries.values())).labels)


def _row(recipe: Recipe, entries: Sequence[Entry], words: Sequence[str]) -> list[str]:
    first = entries[0]
    numbers = [text for entry in entries for text in _numbers(entry)]
    time = in_words(seconds(first.runs)) if first.runs else ""
    command = _command(recipe, first, words)
    labels = [markdown_text(label) for label in first.labels.values()]
    return [*labels, *numbers, str(len(first.runs)), time, f"`{command}`"]


def _numbers(entry: Entry) -> list[str]:
    """The paper's, ours and the difference."""
    measure = entry.measure
    theirs = (
        "" if entry.paper is None else _spread(measure, entry.paper.mean, entry.paper.deviation)
    )
    ours = NOT_RUN if entry.mean is None else _spread(measure, entry.mean, entry.deviation)
    less = "" if entry.difference is None else f"{entry.difference:+,.{measure.decimals}f}"
    return [theirs, ours, less]


def _spread(measure: Measure, mean: float, deviation: float | None) -> str:
    exact = deviation is None or (not measure.decimals and not deviation)
    return measure.text(mean) + ("" if exact else f" ± {measure.text(deviation or 0.0)}")


def _command(recipe: Recipe, entry: Entry, words: Sequence[str]) -> str:
    """What runs a cell again."""
    only = [
        word
        for axis, label in entry.labels.items()
        if len(recipe.axes[axis]) > 1
        for word in ("--only", label)
    ]
    few = len(entry.runs) or recipe.seeds
    seeds = ["--seeds", str(few)] if few != recipe.seeds else []
    return shlex.join(["fedfm", "table", recipe.name, *only, *seeds, *words, "--results", "again"])
