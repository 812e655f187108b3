"""What figures have in common: size, colours, line styles, and reproducible files.

Colour-blind readers can tell the colours apart; dashes and markers work in greyscale too.
"""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedfm.core.errors import require

Array = NDArray[np.float64]
INK = "#2b2b2b"
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#999999", "#000000")
"""Okabe and Ito's colours, which colour-blind people can tell apart."""
GRID = "#dfe2e6"
DASHES: tuple[Any, ...] = (
    "-",
    (0, (5, 1.5)),
    (0, (1.2, 1.2)),
    (0, (6, 1.5, 1.2, 1.5)),
    (0, (9, 2)),
)
MARKERS = "osD^vPX>"


def check_suffix(path: Path) -> None:
    """Refuse a file that is neither PNG nor SVG, before anything is computed."""
    require(path.suffix in (".png", ".svg"), f"a picture ends in .png or .svg, not '{path.suffix}'")


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure, sized in inches, without a window."""
    figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Figure, path: Path, dpi: int = 150) -> Path:
    """Write the figure; the same figure gives the same bytes."""
    check_suffix(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    dated = {"Date": None} if path.suffix == ".svg" else {}
    with rc_context({"svg.hashsalt": "fedfm"}):
        figure.savefig(path, dpi=dpi, metadata=dated)
    return path


@dataclass(frozen=True)
class Line:
    """A curve of means over seeds, and its deviation (0 for one seed)."""

    label: str
    x: Array
    mean: Array
    spread: Array


def line_style(n: int) -> dict[str, Any]:
    """Return the colour, dashes and marker of the n-th line; each differs from its neighbours'."""
    return {
        "color": COLOURS[n % len(COLOURS)],
        "linestyle": DASHES[n % len(DASHES)],
        "marker": MARKERS[n % len(MARKERS)],
        "markersize": 7.5,
        "markeredgecolor": "white",
        "markeredgewidth": 0.5,
        "linewidth": 1.8,
    }


def begin_chart(title: str, path: Path) -> tuple[Figure, Axes]:
    """Return an empty figure with a title, after checking the path it will have."""
    check_suffix(path)
    figure = new_figure(8, 4.6)
    axes = figure.subplots()
    axes.set_title(textwrap.fill(title, 80), color=INK, fontsize=12, loc="left", parse_math=False)
    tidy_axes(axes)
    return figure, axes


def tidy_axes(axes: Axes) -> None:
    """Draw a pale grid behind the data, and no frame above or to the right."""
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=INK)


def save_chart(figure: Figure, axes: Axes, path: Path, order: Sequence[int] = ()) -> Path:
    """Save a figure, with a legend of its lines in the given order."""
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
    return save_figure(figure, path)
