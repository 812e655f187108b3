"""Accuracy curves of several methods, with bands over seeds, as PNG or SVG.

Colours can be told apart by colour-blind people, dashes and markers also where there is no colour.
"""

import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator
from numpy.typing import NDArray

from fedfm.core.errors import require
from fedfm.report.comparison import COLOURS

Run = Sequence[Mapping[str, Any]]
"""The fields of `fedfm.records.RoundRecord` for each round."""
Runs = Mapping[str, Sequence[Run]]
"""By label, a run for each seed."""
Values = Mapping[str, Mapping[str, Sequence[float]]]
"""By the label of a line and the label on the axis, a value for each seed."""
Array = NDArray[np.float64]

ACCURACY = "test accuracy (%)"
_INK, _GRID = "#2b2b2b", "#dfe2e6"
_DASHES: tuple[Any, ...] = (
    "-",
    (0, (5, 1.5)),
    (0, (1.2, 1.2)),
    (0, (6, 1.5, 1.2, 1.5)),
    (0, (9, 2)),
)
_MARKERS = "osD^vPX>"
_MARKS = 8
"""About so many markers on a curve over rounds."""
_SCALES = {
    "floats": ((1e3, "thousand floats"), (1e6, "million floats"), (1e9, "billion floats")),
    "bytes": ((1e3, "kB"), (1e6, "MB"), (1e9, "GB")),
}
_WIDE = 20
"""From this ratio of the largest to the smallest value on an axis is logarithmic."""


@dataclass(frozen=True)
class Line:
    """A curve through the means over seeds, and the deviation from it (0 for one seed)."""

    label: str
    x: Array
    mean: Array
    spread: Array


def over_rounds(runs: Runs, title: str, path: Path) -> Path:
    """Test accuracy after every round."""
    return _draw_bands([_line(label, each) for label, each in runs.items() if each], title, path)


def against_traffic(
    runs: Runs, title: str, path: Path, unit: Literal["floats", "bytes"] = "floats"
) -> Path:
    """Test accuracy against all that was sent until then, up and down."""
    lines = [_line(label, each, unit) for label, each in runs.items() if each]
    return _draw_bands(lines, title, path, unit)


def over_parameter(
    values: Values, axis: str, title: str, path: Path, measure: str = ACCURACY
) -> Path:
    """A measure of finished runs for some values of a parameter; a line for each of another's."""
    figure, axes = _figure(title, path)
    labels = list(dict.fromkeys(label for line in values.values() for label in line))
    places = positions(labels)
    for n, (name, line) in enumerate(values.items()):
        shift = 0.0 if places else 0.12 * (n - (len(values) - 1) / 2)
        at = places or {label: i + shift for i, label in enumerate(labels)}
        found = sorted(
            (at[label], *_mean_and_spread(seeds)) for label, seeds in line.items() if seeds
        )
        if found:
            _draw_points(axes, Line(name, *np.array(found, float).T), n, joined=bool(places))
    _scale(axes, labels, places)
    axes.set(xlabel=axis, ylabel=measure)
    return _finish(figure, axes, path, legend=len(values) > 1)


def positions(labels: Sequence[str]) -> dict[str, float]:
    """The numbers that labels such as "0.5", "T_s = 20" or "50 %" end in; nothing unless all do."""
    number = re.compile(r"(?:^|[\s=])(\d+(?:\.\d+)?(?:e-?\d+)?)(?: ?%)?$")
    found = {label: float(match[1]) for label in labels if (match := number.search(label))}
    return found if len(found) == len(labels) else {}


def _line(label: str, runs: Sequence[Run], unit: str = "") -> Line:
    """Over the rounds that all runs have."""
    rounds = min(map(len, runs))
    accuracies = 100 * np.array([[r["test_accuracy"] for r in run[:rounds]] for run in runs], float)
    x = np.arange(1, rounds + 1, dtype=float)
    if unit:
        sent = [[r[f"{unit}_up"] + r[f"{unit}_down"] for r in run[:rounds]] for run in runs]
        x = np.cumsum(np.array(sent, float), axis=1).mean(0)
    spread = accuracies.std(0, ddof=1) if len(runs) > 1 else np.zeros(rounds)
    return Line(label, x, accuracies.mean(0), spread)


def _mean_and_spread(values: Sequence[float]) -> tuple[float, float]:
    return float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def _draw_bands(lines: Sequence[Line], title: str, path: Path, unit: str = "") -> Path:
    figure, axes = _figure(title, path)
    scale, words = _scale_of(max((line.x[-1] for line in lines), default=0), unit)
    for n, line in enumerate(lines):
        look, x = _look(n), line.x / scale
        every = max(len(x) // _MARKS, 1)
        first = n * every // max(len(lines), 1)  # so that markers of lines that meet stay apart
        axes.plot(x, line.mean, **look, label=line.label, markevery=(first, every))
        low, high = (np.clip(line.mean + side * line.spread, 0, 100) for side in (-1, 1))
        axes.fill_between(x, low, high, color=look["color"], alpha=0.15, linewidth=0)
    axes.set(xlabel=f"{words} sent so far, up and down" if unit else "round", ylabel=ACCURACY)
    axes.xaxis.set_major_locator(MaxNLocator(steps=[1, 2, 5, 10], integer=not unit))
    axes.margins(x=0.02)
    return _finish(figure, axes, path, by_end=True)


def _scale_of(most: float, unit: str) -> tuple[float, str]:
    """What to divide numbers up to `most` by, and what they are called then."""
    fitting = [each for each in _SCALES.get(unit, ()) if most >= each[0]]
    return max(fitting, default=(1.0, unit))


def _look(n: int) -> dict[str, Any]:
    """The n-th line's colour, dashes and markers: any of them tells neighbours apart."""
    return {
        "color": COLOURS[n % len(COLOURS)],
        "linestyle": _DASHES[n % len(_DASHES)],
        "marker": _MARKERS[n % len(_MARKERS)],
        "markersize": 7.5,
        "markeredgecolor": "white",
        "markeredgewidth": 0.5,
        "linewidth": 1.8,
    }


def _draw_points(axes: Axes, line: Line, n: int, joined: bool) -> None:
    look = _look(n) | ({} if joined else {"linestyle": "none"})
    spread = line.spread if line.spread.any() else None
    axes.errorbar(line.x, line.mean, spread, **look, elinewidth=1.1, capsize=3, label=line.label)


def _scale(axes: Axes, labels: Sequence[str], places: Mapping[str, float]) -> None:
    """Ticks at the values that were run; far apart on a logarithmic axis, which has room for 0."""
    positive = [place for place in places.values() if place]
    if positive and max(positive) / min(positive) >= _WIDE:
        axes.set_xscale("symlog", linthresh=min(positive), linscale=0.5)
    at = list(places.values()) or list(range(len(labels)))
    axes.set_xticks(at, [f"{places[label]:g}" if places else label for label in labels])
    axes.xaxis.set_minor_locator(NullLocator())
    if not places:
        axes.set_xlim(-0.5, len(labels) - 0.5)


def _figure(title: str, path: Path) -> tuple[Figure, Axes]:
    require(path.suffix in (".png", ".svg"), f"a picture ends in .png or .svg, not '{path.suffix}'")
    figure = Figure(figsize=(8, 4.6), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.set_title(textwrap.fill(title, 80), color=_INK, fontsize=12, loc="left", parse_math=False)
    axes.grid(color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=_INK)
    return figure, axes


def _finish(
    figure: Figure, axes: Axes, path: Path, legend: bool = True, by_end: bool = False
) -> Path:
    """Add the legend, with `by_end` in the order in which the lines end, and save."""
    handles, labels = axes.get_legend_handles_labels()
    figure.set_figheight(max(figure.get_figheight(), 0.24 * len(handles)))
    if legend and handles:
        order = sorted(range(len(handles)), key=lambda n: -_end(handles[n]) if by_end else 0)
        axes.legend(
            [handles[n] for n in order],
            [labels[n] for n in order],
            loc="center left",
            bbox_to_anchor=(1.01, 0.5),
            frameon=False,
            handlelength=4,
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    with rc_context({"svg.hashsalt": "fedfm"}):
        figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)
    return path


def _end(line: Any) -> float:
    """Where a line ends."""
    return float(line.get_ydata()[-1])
