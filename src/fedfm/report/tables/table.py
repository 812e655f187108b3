"""A table: rows, columns, and an entry with its runs where they meet."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from fedfm.grid.recipe import Recipe
from fedfm.grid.store import Summary
from fedfm.report.tables.statistics import TableMetric, compute_deviation

BASELINE = "FedAvg"
SIGNIFICANT = 0.05
REDUCED = "REDUCED (--quick), no results: "
"""Stands before the title of whatever shows reduced runs."""


class PaperValue(NamedTuple):
    """What the paper reports."""

    mean: float
    deviation: float | None = None

    @staticmethod
    def read(value: Any) -> "PaperValue | None":
        """Read a number, or a mean and a deviation, from a recipe."""
        if value is None:
            return None
        return PaperValue(*map(float, value if isinstance(value, list | tuple) else [value]))


class Comparison(NamedTuple):
    """A paired test against the baseline's row."""

    p: float
    pairs: int

    @property
    def significant(self) -> bool:
        """Return whether it gets a star."""
        return self.p < SIGNIFICANT


@dataclass(frozen=True)
class Entry:
    """A number of the table: its runs, and the paper's value."""

    labels: Mapping[str, str]
    measure: TableMetric
    runs: tuple[Summary, ...] = ()
    """One per seed, in the seeds' order."""
    paper: PaperValue | None = None
    comparable: bool = True
    """Whether the paper's number is about the same experiment."""
    rank: int = 0
    """1: the best of its column; 2: the second; 0: neither."""
    comparison: Comparison | None = None

    @cached_property
    def values(self) -> dict[int, float]:
        """Return the values by seed, as shown."""
        values = ((run.seed, self.measure.of(run)) for run in self.runs)
        return {seed: value for seed, value in values if value is not None}

    @property
    def mean(self) -> float | None:
        """Return the mean over seeds; None if there is no run."""
        return sum(self.values.values()) / len(self.values) if self.values else None

    @property
    def deviation(self) -> float | None:
        """Return the sample standard deviation over seeds; None for fewer than two."""
        return compute_deviation(list(self.values.values()))

    @property
    def difference(self) -> float | None:
        """Return ours minus the paper's."""
        if self.mean is None or self.paper is None or not self.comparable:
            return None
        return self.mean - self.paper.mean


Labels = tuple[str, ...]


class Column(NamedTuple):
    """A column: its labels, and what is measured."""

    labels: Labels
    measure: TableMetric


Entries = dict[tuple[Labels, Column], Entry]


@dataclass(frozen=True)
class Table:
    """A recipe's table, filled as far as there are results."""

    recipe: Recipe
    """The reduced one, if the runs are reduced."""
    quick: bool
    rows: Sequence[Labels]
    columns: Sequence[Column]
    entries: Entries
    """For every cell that the recipe has."""
    missing: Sequence[Mapping[str, str]]
    """The labels of cells without a run."""
    altered: Sequence[Mapping[str, str]]
    """The labels of cells whose runs have other settings than the recipe."""

    @property
    def headline(self) -> str:
        """Return the title, marked if the runs are reduced."""
        paper = f" ({self.recipe.paper})" if self.recipe.paper else ""
        return f"{REDUCED if self.quick else ''}{self.recipe.title}{paper}"

    @property
    def caption(self) -> str:
        """Return the headline, with the measure if the columns do not name it."""
        measure = "" if self._measure_in_heads else f", {self.columns[0].measure.heading}"
        return self.headline + measure

    @property
    def heads(self) -> list[Labels]:
        """Return the heading of every column, from the top."""
        extra = self._measure_in_heads
        return [(*c.labels, *([c.measure.heading] if extra else [])) for c in self.columns]

    @property
    def row_head(self) -> str:
        """Return the heading of the row labels."""
        return " / ".join(self.recipe.rows)

    def find_baseline(self, row: Labels) -> Labels:
        """Return the row of FedAvg with the same other labels, or else the first row."""
        for n, axis in enumerate(self.recipe.rows):
            if BASELINE in self.recipe.axes[axis]:
                return (*row[:n], BASELINE, *row[n + 1 :])
        return self.rows[0]

    @property
    def baseline(self) -> str:
        """Return what the other rows are tested against, in words."""
        row = self.find_baseline(self.rows[0])
        return BASELINE if BASELINE in row else " / ".join(row)

    @property
    def lines(self) -> Iterator[tuple[Labels, list[Entry | None]]]:
        """Yield each row with its entries; None where the recipe has no cell."""
        for row in self.rows:
            yield row, [self.entries.get((row, column)) for column in self.columns]

    @property
    def _measure_in_heads(self) -> bool:
        return len({column.measure for column in self.columns}) > 1 or not self.recipe.columns
