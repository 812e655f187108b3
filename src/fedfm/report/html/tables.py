"""The tables of the page; a cell has a text and a value to sort by."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedfm.report.html.charts import choose_unit
from fedfm.report.html.group import MethodGroup, Setting
from fedfm.report.html.load import LoadedRun

NEVER = 1e300
"""Sorts after all that was sent."""


class HtmlCell(NamedTuple):
    """A text, and the value it is sorted by."""

    text: str
    value: float | str
    strong: bool = False


class HtmlTable(NamedTuple):
    """A table whose first column is the method."""

    caption: str
    heads: tuple[str, ...]
    rows: list[tuple[int, list[HtmlCell]]]
    """The number of the row's method, and its cells."""


def build_results(setting: Setting) -> HtmlTable:
    """Return the table of accuracies and totals."""
    heads = ("method", "seeds", "test accuracy, %", "best round", *SENT)
    rows = [(e.number, _format_result(e, e is setting.best)) for e in setting.entries]
    caption = "Test accuracy: mean ± standard deviation over seeds. The rest: mean of one run."
    return HtmlTable(caption, heads, rows)


def _format_result(entry: MethodGroup, best: bool) -> list[HtmlCell]:
    rounds = sorted(run.best_round for run in entry.runs)
    between = str(rounds[0]) if rounds[0] == rounds[-1] else f"{rounds[0]} to {rounds[-1]}"
    return [
        HtmlCell(entry.label, entry.label),
        HtmlCell(str(len(entry.runs)), len(entry.runs)),
        HtmlCell(format_accuracy(entry), entry.mean, best),
        HtmlCell(between, float(np.mean(rounds))),
        *_format_traffic(entry, 1),
    ]


def _format_traffic(entry: MethodGroup, parts: int) -> list[HtmlCell]:
    """Return the cells under `SENT`: totals of a run, or their share per round."""
    shares = {name: entry.total(name) / parts for name in FORMATS}
    return [HtmlCell(FORMATS[name](share), share) for name, share in shares.items()]


def format_number(value: float) -> str:
    """Format a number with three digits, or all digits before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def format_accuracy(entry: MethodGroup) -> str:
    """Format mean and deviation; a single run has only its accuracy."""
    after = f" ± {entry.deviation:.2f}" if len(entry.runs) > 1 else ""
    return f"{entry.mean:.2f}{after}"


def format_bytes(value: float) -> str:
    """Format a number of bytes in a suitable unit."""
    size, unit = choose_unit(value)
    return f"{value / size:,.4g} {unit}"


FORMATS: dict[str, Callable[[float], str]] = {
    "floats_up": "{:,.0f}".format,
    "floats_down": "{:,.0f}".format,
    "bytes_up": format_bytes,
    "bytes_down": format_bytes,
    "handshakes": format_number,
    "seconds": format_number,
}
"""How each total of a run is written."""
SENT = tuple(name.replace("_", " ") for name in FORMATS)


def find_common_accuracy(setting: Setting) -> float | None:
    """Return the highest accuracy that every method reaches on average."""
    reached = [float(curve.mean.max()) for e in setting.entries if (curve := e.best_curve)]
    return min(reached, default=None)


def find_cheapest(setting: Setting) -> tuple[MethodGroup, str, str] | None:
    """Return the method that reached the common accuracy with the least traffic."""
    target = find_common_accuracy(setting)
    if target is None or len(setting.entries) == 1:
        return None
    best = min(setting.entries, key=lambda entry: _find_traffic_until(entry, target).value)
    return best, _find_traffic_until(best, target).text, f"{target:.1f} %"


def build_costs(setting: Setting) -> HtmlTable:
    """Return the table of a round's costs, and of the traffic until the common accuracy."""
    target = find_common_accuracy(setting)
    last = () if target is None else (f"sent until {target:.1f} %",)
    rows = [(e.number, _format_costs(e, target)) for e in setting.entries]
    return HtmlTable("One round, summed over its clients.", ("method", *SENT, *last), rows)


def _format_costs(entry: MethodGroup, target: float | None) -> list[HtmlCell]:
    traffic = _format_traffic(entry, max(entry.runs[0].rounds, 1))
    until = [] if target is None else [_find_traffic_until(entry, target)]
    return [HtmlCell(entry.label, entry.label), *traffic, *until]


def _find_traffic_until(entry: MethodGroup, target: float) -> HtmlCell:
    curve = entry.best_curve
    if curve is None:
        return HtmlCell("", NEVER)
    sent = float(curve.sent[np.argmax(curve.mean >= target)])
    return HtmlCell(format_bytes(sent), sent)


def list_machines(runs: Sequence[LoadedRun]) -> list[dict[str, Any]]:
    """Return the different machines, with the number of runs on each."""
    counts = Counter(map(_describe_machine, runs)).most_common()
    heads = ("device", "executor", "versions", "runs")
    return [dict(zip(heads, (*machine, count), strict=True)) for machine, count in counts]


def _describe_machine(run: LoadedRun) -> tuple[str, str, str]:
    device = " ".join(filter(None, (run.machine.get("device"), run.machine.get("name"))))
    versions = ", ".join(f"{name} {version}" for name, version in run.versions.items())
    return device or "unknown", run.machine.get("executor", "unknown"), versions or "unknown"
