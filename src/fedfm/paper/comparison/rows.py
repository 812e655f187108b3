"""The methods of a comparison with their runs: scores, costs, and curves of what they reach."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedfm.config import parse
from fedfm.grid.store import Rounds, Summary, read_rounds_of_runs
from fedfm.report.tables.table import Entry, Labels, Table
from fedfm.run.records import best_so_far

Array = NDArray[np.float64]


class MethodCurve(NamedTuple):
    """What a method reaches and spends, after every round [T], as means over seeds."""

    reached: Array
    """The test accuracy in percent of the round that validation would choose by then."""
    spread: Array
    """Its sample standard deviation over seeds; 0 for one seed."""
    gigabytes: Array
    """Sent so far by server and clients."""
    passes: Array
    """Rounds of FedAvg that the clients' work so far amounts to."""

    @property
    def rounds(self) -> Array:
        """The numbers of the rounds."""
        return np.arange(1.0, len(self.reached) + 1)


@dataclass(frozen=True)
class MethodRow:
    """A method under one skew: a cell of the table, and the rounds of its runs."""

    method: str
    entries: Mapping[str, Entry]
    """By the name of the measure."""
    rounds: Sequence[Rounds]
    """One per run, in the order of the runs."""

    @property
    def runs(self) -> tuple[Summary, ...]:
        """The runs, one per seed."""
        return next(iter(self.entries.values())).runs

    @cached_property
    def work(self) -> float:
        """What a local step costs, relative to FedAvg's."""
        pieces = parse(self.runs[0].config | {"seed": 0}).composed.pieces
        return max(piece.step_cost for piece in pieces)

    @cached_property
    def curve(self) -> MethodCurve:
        """The means over seeds, for the rounds that all runs have."""
        rounds = min(map(len, self.rounds))
        runs = [run[:rounds] for run in self.rounds]
        scores = [best_so_far((r["val_accuracy"], r["test_accuracy"]) for r in run) for run in runs]
        reached = 100 * np.array(scores)
        sent = [[r["bytes_up"] + r["bytes_down"] for r in run] for run in runs]
        spread = reached.std(0, ddof=1) if len(runs) > 1 else np.zeros(rounds)
        gigabytes = np.cumsum(np.array(sent, float), axis=1).mean(0) / 1e9
        return MethodCurve(
            reached.mean(0), spread, gigabytes, self.work * np.arange(1.0, rounds + 1)
        )


def collect_rows(table: Table, results: Path, column: Labels) -> list[MethodRow]:
    """Return the rows of a table that were run in a column, with their rounds."""
    rows = []
    for labels, entries in _find_cells(table, column):
        first = next(iter(entries.values()))
        readable = read_rounds_of_runs(results, first.runs)
        if readable:
            rows.append(MethodRow(" / ".join(labels), entries, [rounds for _, rounds in readable]))
    return rows


def _find_cells(table: Table, column: Labels) -> Iterator[tuple[Labels, dict[str, Entry]]]:
    for row in table.rows:
        entries = {
            place.measure.name: entry
            for (labels, place), entry in table.entries.items()
            if (labels, place.labels) == (row, column) and entry.runs
        }
        if entries:
            yield row, entries
