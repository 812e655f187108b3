"""Write the document of the comparison from the results that there are."""

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from fedfm.core.checkpoint import write_atomically
from fedfm.grid.budget import format_duration
from fedfm.grid.jobs import find_missing
from fedfm.grid.recipe import expand_cells
from fedfm.grid.store import Store, Summary
from fedfm.paper.field import sections, words
from fedfm.paper.field.plan import Situation, build_field_table, load_steps, plan_step
from fedfm.paper.field.rows import Row, collect_rows
from fedfm.paper.field.tuning import Tuned
from fedfm.paper.sections import name_machines, sum_seconds
from fedfm.report.tables.formats import format_markdown_table
from fedfm.report.tables.table import Labels, Table

RECIPES = ("field", "field-matching", "field-anchors", "field-published")


@dataclass(frozen=True)
class Comparison:
    """What the document is made of."""

    path: Path
    results: Path
    overrides: tuple[str, ...]
    options: tuple[str, ...]
    """The options of the command line that say what was run: --set and --with."""
    built: Mapping[str, tuple[Tuned, Table]]
    """By the name of the recipe."""

    @property
    def command(self) -> str:
        """Return the command that writes it."""
        where = ["--results", str(self.results), "--document", str(self.path)]
        return shlex.join(["fedfm", "compare", "--no-run", *self.options, *where])

    @cached_property
    def summaries(self) -> list[Summary]:
        """Return all results."""
        return Store(self.results).summaries()

    @property
    def runs(self) -> list[Summary]:
        """Return the runs behind its tables, each once."""
        tables = [table for _, table in self.built.values()]
        runs = [run for table in tables for e in table.entries.values() for run in e.runs]
        return list({run.key: run for run in runs}.values())

    @property
    def columns(self) -> list[Labels]:
        """Return the columns of the main table: protocol and skew."""
        return list(dict.fromkeys(column.labels for column in self.built["field"][1].columns))

    @cached_property
    def rows(self) -> dict[Labels, list[Row]]:
        """Return the methods that were run, by column of the main table."""
        table = self.built["field"][1]
        return {column: collect_rows(table, self.results, column) for column in self.columns}

    def picture(self, column: Labels) -> Path:
        """Return the path of a column's picture."""
        skew = column[-1].lower().replace(" ", "-")
        return self.path.with_name(f"{self.path.stem}-{skew}.png")

    @property
    def discussion(self) -> str:
        """Return the discussion from a file beside the document; empty if there is none."""
        path = self.path.with_name(f"{self.path.stem}-discussion.md")
        return path.read_text() if path.exists() else ""


def make_document(
    path: Path, results: Path, overrides: Sequence[str], options: Sequence[str]
) -> Comparison:
    """Return the document about results; `overrides` are what `options` stand for."""
    built = {name: build_field_table(name, results, overrides) for name in RECIPES}
    return Comparison(path, results, tuple(overrides), tuple(options), built)


def write_document(made: Comparison) -> list[Path]:
    """Draw the pictures and write the text; return the files."""
    from fedfm.paper.field.picture import draw_comparison

    made.path.parent.mkdir(parents=True, exist_ok=True)
    drawn = []
    for column, rows in made.rows.items():
        picture = made.picture(column)
        if rows:
            title = f"{made.built['field'][1].recipe.title}: {' / '.join(column)}"
            drawn.append(draw_comparison(rows, title, picture))
        else:
            picture.unlink(missing_ok=True)
    write_atomically(made.path, render_document(made).encode())
    return [made.path, *drawn]


def render_document(made: Comparison) -> str:
    """Return the document as Markdown."""
    return "\n".join(_render_parts(made))


def _render_parts(made: Comparison) -> Iterator[str]:
    tuned, table = made.built["field"]
    yield _render_introduction(made)
    yield words.IN_SHORT
    for column in made.columns:
        yield sections.render_budgets(table, column, made.rows[column])
    if made.discussion:
        yield f"## Discussion\n\n{made.discussion}"
    yield words.ALL_METHODS
    for column in made.columns:
        yield f"### All methods, {' / '.join(column)}\n"
        yield sections.render_methods(table, column, made.rows[column], tuned, made.results)
        if made.rows[column]:
            yield f"![accuracy against cost]({made.picture(column).name})\n"
    for name, render in sections.GAINS.items():
        recipe = made.built[name][1].recipe
        yield f"## {recipe.title} (`{name}`)\n\n{recipe.about}\n\n{words.GAIN}"
        yield render(made.built[name][1])
    published = made.built["field-published"][1]
    yield f"## {published.recipe.title} (`field-published`)\n\n{published.recipe.about}\n"
    yield sections.render_published(published, made.results)
    yield _render_protocol(made)
    yield sections.render_tuning(tuned)
    yield _render_plan(made)


def _render_introduction(made: Comparison) -> str:
    progress = words.PROGRESS.format(
        folder=os.path.relpath(made.results, made.path.parent),
        runs=len(made.runs),
        time=format_duration(sum_seconds(made.runs)),
        machines=" and ".join(name_machines(made.results, made.runs)),
    )
    return words.INTRODUCTION.format(
        command=made.command, progress=progress if made.runs else words.NO_RUNS
    )


def _render_protocol(made: Comparison) -> str:
    """Describe the protocol by the config of the first cell."""
    cell = next(iter(expand_cells(made.built["field"][1].recipe, False, made.overrides)))
    config, training = cell.resolved, cell.resolved.training
    return words.PROTOCOL.format(
        model=config.model.name,
        **{f"model_{key}": value for key, value in config.model.options.items()},
        cohort=training.cohort,
        **{f"{key}": getattr(training, key) for key in words.TRAINING_KEYS},
    )


def _render_plan(made: Comparison) -> str:
    now, rows = Situation(made.summaries, made.overrides), []
    for number, step in enumerate(load_steps(), 1):
        jobs = plan_step(step, now)
        left = sum(len(job.seeds) for job in find_missing(jobs, made.summaries))
        done = f"{len(jobs) - left} of {len(jobs)}" if jobs else "waits for steps before it"
        rows.append([str(number), step.title, done])
    return words.PLAN + "\n" + format_markdown_table(("step", "what", "runs done"), rows)
