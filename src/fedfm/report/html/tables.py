"""The tables of the page, as cells with a text and the value they are sorted by."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedfm.report.html.charts import unit_of
from fedfm.report.html.grouping import Entry, Setting
from fedfm.report.html.reading import TOTALS, FoundRun

SENT = ("floats up", "floats down", "bytes up", "bytes down", "handshakes", "seconds")
NEVER = 1e300
"""Sorts after all that was sent."""


class Cell(NamedTuple):
    """What is written, and what it is sorted by."""

    text: str
    value: float | str
    strong: bool = False


class Row(NamedTuple):
    """A row, with its method's number."""

    number: int
    cells: Sequence[Cell]


@dataclass(frozen=True)
class Table:
    """A table whose first column is the method."""

    caption: str
    heads: tuple[str, ...]
    rows: list[Row]


def results(setting: Setting) -> Table:
    """What came out, and what it took in all."""
    heads = ("method", "seeds", "test accuracy, %", "best round", *SENT)
    rows = [Row(e.number, _result(e, e is setting.best)) for e in setting.entries]
    return Table("Test accuracy: mean ± deviation over seeds. The rest is of one run.", heads, rows)


def _result(entry: Entry, best: bool) -> list[Cell]:
    rounds = sorted({run.best_round for run in entry.runs})
    between = str(rounds[0]) if len(rounds) == 1 else f"{rounds[0]} to {rounds[-1]}"
    middle = float(np.mean([run.best_round for run in entry.runs]))
    return [
        Cell(entry.label, entry.label),
        Cell(str(len(entry.runs)), len(entry.runs)),
        Cell(spread(entry), entry.mean, best),
        Cell(between, middle),
        *_sent(entry, 1),
    ]


def _sent(entry: Entry, parts: int) -> list[Cell]:
    """The cells under `SENT`: the totals of a run, or what falls to one of its rounds."""
    each = {name: entry.total(name) / parts for name in TOTALS}
    counts = [Cell(f"{each[name]:,.0f}", each[name]) for name in ("floats_up", "floats_down")]
    sizes = [Cell(in_bytes(each[name]), each[name]) for name in ("bytes_up", "bytes_down")]
    few = [Cell(short_number(each[name]), each[name]) for name in ("handshakes", "seconds")]
    return [*counts, *sizes, *few]


def short_number(value: float) -> str:
    """With three digits, or all before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def spread(entry: Entry) -> str:
    """Mean and deviation; of a single run just its accuracy."""
    after = f" ± {entry.deviation:.2f}" if len(entry.runs) > 1 else ""
    return f"{entry.mean:.2f}{after}"


def in_bytes(value: float) -> str:
    """A number of bytes in a unit that suits it."""
    size, unit = unit_of(value)
    return f"{value / size:,.4g} {unit}"


def common_accuracy(setting: Setting) -> float | None:
    """The highest accuracy that every method's best model so far comes to, in the mean."""
    reached = [float(curve.mean.max()) for e in setting.entries if (curve := e.reached)]
    return min(reached, default=None)


def cheapest(setting: Setting) -> tuple[Entry, str, str] | None:
    """The method that had sent least when it reached the common accuracy: how much, and where."""
    target = common_accuracy(setting)
    if target is None or len(setting.entries) == 1:
        return None
    best = min(setting.entries, key=lambda entry: _until(entry, target).value)
    return best, _until(best, target).text, f"{target:.1f} %"


def costs(setting: Setting) -> Table:
    """What a round costs, and what had been sent when the common accuracy was reached."""
    target = common_accuracy(setting)
    last = () if target is None else (f"sent until {target:.1f} %",)
    rows = [Row(e.number, _cost(e, target)) for e in setting.entries]
    return Table("Of one round, all its clients together.", ("method", *SENT, *last), rows)


def _cost(entry: Entry, target: float | None) -> list[Cell]:
    cells = [Cell(entry.label, entry.label), *_sent(entry, max(entry.runs[0].rounds, 1))]
    return cells if target is None else [*cells, _until(entry, target)]


def _until(entry: Entry, target: float) -> Cell:
    curve = entry.reached
    if curve is None:
        return Cell("", NEVER)
    sent = float(curve.sent[np.argmax(curve.mean >= target)])
    return Cell(in_bytes(sent), sent)


class Machine(NamedTuple):
    """Where runs were made, and with what."""

    device: str
    executor: str
    versions: str
    runs: int


def machines(runs: Sequence[FoundRun]) -> list[Machine]:
    """The different ones, with how many runs each made."""
    return [Machine(*found, count) for found, count in Counter(map(_machine, runs)).most_common()]


def _machine(run: FoundRun) -> tuple[str, str, str]:
    device = " ".join(filter(None, (run.machine.get("device"), run.machine.get("name"))))
    versions = ", ".join(f"{name} {version}" for name, version in run.versions.items())
    return device or "unknown", run.machine.get("executor", "unknown"), versions or "unknown"
