"""Draw curves of a table: a measure over a parameter, or accuracy against traffic."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

from fedfm.grid.store import Rounds, read_rounds_of_runs
from fedfm.report.figure import Line, begin_chart, line_style, save_chart
from fedfm.report.tables.statistics import compute_deviation
from fedfm.report.tables.table import Table
from fedfm.run.records import best_so_far

Values = Mapping[str, Mapping[str, Sequence[float]]]
"""By the label of a line and the label on the axis, a value for each seed."""
WIDE = 20
"""An axis is logarithmic if its largest value is at least so many times its smallest."""
Run = Sequence[Mapping[str, Any]]
"""The fields of `fedfm.run.records.RoundRecord` for each round."""
Runs = Mapping[str, Sequence[Run]]
"""By label, a run for each seed."""
SCALES = ((1e3, "thousand floats"), (1e6, "million floats"), (1e9, "billion floats"))
BELOW = 2
"""The axis starts this many times the spread of the final values below the lowest one."""
SEPARATOR = " / "


def draw_curves(table: Table, results: Path, path: Path) -> Path:
    """Draw a table over its columns, or against traffic if it has none.

    `results` is the folder of the results, in which the runs' folders are.
    """
    if not table.recipe.columns:
        return draw_against_traffic(collect_rounds(table, results), _format_title(table), path)
    axis, heading = SEPARATOR.join(table.recipe.columns), table.columns[0].measure.heading
    return draw_over_parameter(collect_values(table), axis, _format_title(table), path, heading)


def collect_values(table: Table) -> Values:
    """Return the first measure of every row that was run: by column, a value per seed."""
    measure = table.columns[0].measure
    lines = {
        SEPARATOR.join(row): {
            SEPARATOR.join(column.labels): list(entry.values.values())
            for column, entry in zip(table.columns, entries, strict=True)
            if entry and entry.values and column.measure == measure
        }
        for row, entries in table.lines
    }
    return {row: values for row, values in lines.items() if values}


def collect_rounds(table: Table, results: Path) -> dict[str, list[Rounds]]:
    """Return the rounds of the runs behind every cell, by its labels."""
    entries = table.entries.values()
    runs = {run.place: run for entry in entries for run in entry.runs}
    rounds = {run.place: lines for run, lines in read_rounds_of_runs(results, runs.values())}
    cells = {
        SEPARATOR.join(entry.labels.values()): [
            rounds[run.place] for run in entry.runs if run.place in rounds
        ]
        for entry in entries
    }
    return {label: readable for label, readable in cells.items() if readable}


def _format_title(table: Table) -> str:
    """Return the headline without a line break between "Fig." and its number."""
    paper = table.recipe.paper
    return table.headline.replace(paper, paper.replace(" ", "\u00a0"))


def draw_over_parameter(values: Values, axis: str, title: str, path: Path, measure: str) -> Path:
    """Draw a measure over a parameter, with a line for each row."""
    figure, axes = begin_chart(title, path)
    labels = list(dict.fromkeys(label for line in values.values() for label in line))
    places = parse_positions(labels)
    for n, (name, line) in enumerate(values.items()):
        shift = 0.0 if places else 0.12 * (n - (len(values) - 1) / 2)
        at = places or {label: i + shift for i, label in enumerate(labels)}
        points = sorted(
            (at[label], float(np.mean(values)), compute_deviation(values) or 0.0)
            for label, values in line.items()
            if values
        )
        if points:
            _draw_points(axes, Line(name, *np.array(points, float).T), n, joined=bool(places))
    _scale_axis(axes, labels, places)
    axes.set(xlabel=axis, ylabel=measure)
    handles, _ = axes.get_legend_handles_labels()
    return save_chart(figure, axes, path, range(len(handles)) if len(values) > 1 else ())


def parse_positions(labels: Sequence[str]) -> dict[str, float]:
    """Return the numbers at the end of labels such as "T_s = 20"; {} unless all have one."""
    number = re.compile(r"(?:^|[\s=])(\d+(?:\.\d+)?(?:e-?\d+)?)(?: ?%)?$")
    numbers = {label: float(match[1]) for label in labels if (match := number.search(label))}
    return numbers if len(numbers) == len(labels) else {}


def _draw_points(axes: Axes, line: Line, n: int, joined: bool) -> None:
    style = line_style(n) | ({} if joined else {"linestyle": "none"})
    spread = line.spread if line.spread.any() else None
    axes.errorbar(line.x, line.mean, spread, **style, elinewidth=1.1, capsize=3, label=line.label)


def _scale_axis(axes: Axes, labels: Sequence[str], places: Mapping[str, float]) -> None:
    """Put ticks at the values that were run; a wide range gets a logarithmic axis."""
    positive = [place for place in places.values() if place]
    if positive and max(positive) / min(positive) >= WIDE:
        axes.set_xscale("symlog", linthresh=min(positive), linscale=0.5)
    at = list(places.values()) or list(range(len(labels)))
    axes.set_xticks(at, [f"{places[label]:g}" if places else label for label in labels])
    axes.xaxis.set_minor_locator(NullLocator())
    if not places:
        axes.set_xlim(-0.5, len(labels) - 0.5)


def draw_against_traffic(runs: Runs, title: str, path: Path) -> Path:
    """Draw the test accuracy of the best round so far against all floats sent.

    The best round is the one with the best validation accuracy, as in the tables.
    """
    lines = [_average_runs(label, each) for label, each in runs.items() if each]
    figure, axes = begin_chart(title, path)
    scale, words = _choose_unit(max((line.x[-1] for line in lines), default=0))
    lines = [replace(line, x=line.x / scale) for line in lines]
    for n, line in enumerate(lines):
        _draw_line(axes, line, n)
    axes.set(xlabel=f"{words} sent so far, up and down", ylabel="test accuracy (%), best round")
    if lines:
        _zoom(axes, lines)
    return save_chart(
        figure, axes, path, sorted(range(len(lines)), key=lambda n: -lines[n].mean[-1])
    )


def _average_runs(label: str, runs: Sequence[Run]) -> Line:
    """Average over runs, for the rounds that all of them have."""
    rounds = min(map(len, runs))
    accuracies = ([(r["val_accuracy"], r["test_accuracy"]) for r in run[:rounds]] for run in runs)
    best = 100 * np.array([best_so_far(run) for run in accuracies])
    sent = [[r["floats_up"] + r["floats_down"] for r in run[:rounds]] for run in runs]
    spread = best.std(0, ddof=1) if len(runs) > 1 else np.zeros(rounds)
    return Line(label, np.cumsum(np.array(sent, float), axis=1).mean(0), best.mean(0), spread)


def _choose_unit(most: float) -> tuple[float, str]:
    """Return the divisor and the name of the unit for numbers up to `most`."""
    return max((each for each in SCALES if most >= each[0]), default=(1.0, "floats"))


def _draw_line(axes: Axes, line: Line, n: int) -> None:
    """Draw a line with its band, and a marker at its end."""
    style = line_style(n)
    axes.plot(line.x, line.mean, **style, label=line.label, markevery=[len(line.x) - 1])
    low, high = (np.clip(line.mean + side * line.spread, 0, 100) for side in (-1, 1))
    axes.fill_between(line.x, low, high, color=style["color"], alpha=0.15, linewidth=0)


def _zoom(axes: Axes, lines: Sequence[Line]) -> None:
    """Use a logarithmic axis, and show the accuracies at which lines differ."""
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
