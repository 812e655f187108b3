"""How good a model is for how much communication."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

from fedfm.report.figure import Line, begun, look, saved
from fedfm.run.records import best_so_far

Run = Sequence[Mapping[str, Any]]
"""The fields of `fedfm.run.records.RoundRecord` for each round."""
Runs = Mapping[str, Sequence[Run]]
"""By label, a run for each seed."""
SCALES = ((1e3, "thousand floats"), (1e6, "million floats"), (1e9, "billion floats"))
BELOW = 2
"""The axis goes so many times as far below the lowest end of a line as the ends lie apart."""


def against_traffic(runs: Runs, title: str, path: Path) -> Path:
    """The test accuracy of the best round so far against all floats sent until then.

    The best round is the one with the best validation accuracy, as in the tables.
    """
    lines = [_line(label, each) for label, each in runs.items() if each]
    figure, axes = begun(title, path)
    scale, words = _scale_of(max((line.x[-1] for line in lines), default=0))
    lines = [replace(line, x=line.x / scale) for line in lines]
    for n, line in enumerate(lines):
        _draw(axes, line, n)
    axes.set(xlabel=f"{words} sent so far, up and down", ylabel="test accuracy (%), best round")
    if lines:
        _zoom(axes, lines)
    return saved(figure, axes, path, sorted(range(len(lines)), key=lambda n: -lines[n].mean[-1]))


def _line(label: str, runs: Sequence[Run]) -> Line:
    """Over the rounds that all runs have."""
    rounds = min(map(len, runs))
    accuracies = ([(r["val_accuracy"], r["test_accuracy"]) for r in run[:rounds]] for run in runs)
    found = 100 * np.array([best_so_far(run) for run in accuracies])
    sent = [[r["floats_up"] + r["floats_down"] for r in run[:rounds]] for run in runs]
    spread = found.std(0, ddof=1) if len(runs) > 1 else np.zeros(rounds)
    return Line(label, np.cumsum(np.array(sent, float), axis=1).mean(0), found.mean(0), spread)


def _scale_of(most: float) -> tuple[float, str]:
    """What to divide numbers up to `most` by, and what they are called then."""
    return max((each for each in SCALES if most >= each[0]), default=(1.0, "floats"))


def _draw(axes: Axes, line: Line, n: int) -> None:
    """The line with its band, and a marker where it ends."""
    style = look(n)
    axes.plot(line.x, line.mean, **style, label=line.label, markevery=[len(line.x) - 1])
    low, high = (np.clip(line.mean + side * line.spread, 0, 100) for side in (-1, 1))
    axes.fill_between(line.x, low, high, color=style["color"], alpha=0.15, linewidth=0)


def _zoom(axes: Axes, lines: Sequence[Line]) -> None:
    """A logarithmic axis, and of the accuracies those among which lines can be told apart."""
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    ends = [float(line.mean[-1]) for line in lines]
    low = max(0.0, min(ends) - BELOW * max(max(ends) - min(ends), 2.0))
    high = max(float((line.mean + line.spread).max()) for line in lines)
    axes.set_ylim(low, min(100.0, high + 1))
    first = min(float(line.x[line.mean >= low].min()) for line in lines)
    axes.set_xlim(first / 1.1, 1.15 * max(line.x[-1] for line in lines))
