"""The picture of a comparison: accuracy against traffic, rounds and client compute."""

import textwrap
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from fedfm.paper.comparison.rows import MethodRow
from fedfm.report.figure import (
    COLOURS,
    INK,
    MARKERS,
    line_style,
    new_figure,
    save_figure,
    tidy_axes,
)

PANELS = (
    ("gigabytes", "gigabytes sent so far, up and down"),
    ("rounds", "rounds"),
    ("passes", "client compute (in rounds of FedAvg)"),
)
"""The abscissas: the attribute of a curve, and what it is."""
BELOW = 15.0
"""The axis begins this many points below the lowest final accuracy."""


def draw_comparison(rows: Sequence[MethodRow], title: str, path: Path) -> Path:
    """Draw the test accuracy of the best round so far by validation, with bands over seeds."""
    figure = new_figure(13, 4.6)
    panels = figure.subplots(1, len(PANELS), sharey=True)
    for axes, (attribute, words) in zip(panels, PANELS, strict=True):
        for n, row in enumerate(rows):
            _draw_row(axes, row, n, attribute)
        axes.set_xlabel(words)
        axes.set_xlim(left=0)
        tidy_axes(axes)
    panels[0].set_ylabel("test accuracy (%), best round so far")
    ends = [float(row.curve.reached[-1]) for row in rows]
    panels[0].set_ylim(max(0.0, min(ends) - BELOW), min(100.0, max(ends) + 2))
    handles, labels = panels[0].get_legend_handles_labels()
    order = sorted(range(len(rows)), key=lambda n: -ends[n])
    figure.legend(
        [handles[n] for n in order],
        [labels[n] for n in order],
        loc="outside right center",
        frameon=False,
        handlelength=4,
    )
    figure.suptitle(textwrap.fill(title, 130), color=INK, fontsize=12, x=0.01, ha="left")
    return save_figure(figure, path)


def _draw_row(axes: Axes, row: MethodRow, n: int, attribute: str) -> None:
    """Draw a line with its band, and a marker at its end."""
    again = n // len(COLOURS)  # a colour that comes again gets another marker
    style, curve = line_style(n) | {"marker": MARKERS[(n + 3 * again) % len(MARKERS)]}, row.curve
    x = getattr(curve, attribute)
    axes.plot(x, curve.reached, **style, label=row.method, markevery=[len(x) - 1])
    low, high = (np.clip(curve.reached + side * curve.spread, 0, 100) for side in (-1, 1))
    axes.fill_between(x, low, high, color=style["color"], alpha=0.15, linewidth=0)
