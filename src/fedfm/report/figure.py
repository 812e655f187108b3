"""What the pictures of tables have in common, as PNG or SVG.

Colours can be told apart by colour-blind people, dashes and markers also where there is no colour.
"""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedfm.report.picture import COLOURS, INK, blank, check_picture, save

Array = NDArray[np.float64]
GRID = "#dfe2e6"
DASHES: tuple[Any, ...] = (
    "-",
    (0, (5, 1.5)),
    (0, (1.2, 1.2)),
    (0, (6, 1.5, 1.2, 1.5)),
    (0, (9, 2)),
)
MARKERS = "osD^vPX>"


@dataclass(frozen=True)
class Line:
    """A curve through the means over seeds, and the deviation from it (0 for one seed)."""

    label: str
    x: Array
    mean: Array
    spread: Array


def look(n: int) -> dict[str, Any]:
    """The n-th line's colour, dashes and markers: any of them tells neighbours apart."""
    return {
        "color": COLOURS[n % len(COLOURS)],
        "linestyle": DASHES[n % len(DASHES)],
        "marker": MARKERS[n % len(MARKERS)],
        "markersize": 7.5,
        "markeredgecolor": "white",
        "markeredgewidth": 0.5,
        "linewidth": 1.8,
    }


def begun(title: str, path: Path) -> tuple[Figure, Axes]:
    """An empty figure with a title, for a picture that will be saved there."""
    check_picture(path)
    figure = blank(8, 4.6)
    axes = figure.subplots()
    axes.set_title(textwrap.fill(title, 80), color=INK, fontsize=12, loc="left", parse_math=False)
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=INK)
    return figure, axes


def saved(figure: Figure, axes: Axes, path: Path, order: Sequence[int] = ()) -> Path:
    """The picture, with a legend of the lines of that order."""
    handles, labels = axes.get_legend_handles_labels()
    figure.set_figheight(max(figure.get_figheight(), 0.24 * len(handles)))
    if order:
        axes.legend(
            [handles[n] for n in order],
            [labels[n] for n in order],
            loc="center left",
            bbox_to_anchor=(1.01, 0.5),
            frameon=False,
            handlelength=4,
        )
    return save(figure, path)
