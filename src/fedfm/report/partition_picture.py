"""Draw a partition: clients down, classes across, counts as colours and numbers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, PowerNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from fedfm.core.errors import require
from fedfm.report.figure import INK, check_suffix, new_figure, save_figure

_EMPTY, _NOUGHT, _BAR = "#f1f2f5", "#a9b0ba", "#8aa0b8"
_FEW = 20  # so many clients or classes still have room for numbers in their cells
_MANY = 120  # more than so many classes are named in part, and cells lose the lines between them


def draw_partition(
    table: NDArray[Any],
    class_names: Sequence[str],
    title: str,
    path: Path,
    client_names: Sequence[str] = (),
) -> Path:
    """Draw the counts `table` [K, C] to `path` (.png or .svg), and return the path.

    Clients are named by their number, or by `client_names` if there is room for names.
    """
    classes = table.shape[1]
    require(
        len(class_names) == classes,
        f"{len(class_names)} class names for a table of {classes} classes",
    )
    check_suffix(path)
    figure = _make_figure(table, class_names, client_names or [*map(str, range(len(table)))])
    figure.suptitle(title, color=INK, fontsize=13, parse_math=False)
    return save_figure(figure, path)


def _make_figure(
    table: NDArray[Any], class_names: Sequence[str], client_names: Sequence[str]
) -> Figure:
    width, height = _compute_extent(*table.shape)
    figure = new_figure(width + 3.2, height + 1.6)
    cells, bars, scale = figure.subplots(1, 3, width_ratios=(width, 1.6, 0.16))
    image = _draw_cells(cells, table)
    _label_cells(cells, client_names, class_names)
    _draw_totals(bars, table.sum(1), cells)
    ticks = MaxNLocator(8, integer=True)
    figure.colorbar(image, cax=scale, ticks=ticks, format="{x:,.0f}").outline.set_visible(False)
    scale.set_title("count", fontsize=9, color=INK, loc="left")
    for axes in (cells, bars, scale):
        axes.tick_params(which="both", length=0, labelcolor=INK)
        axes.spines[:].set_visible(False)
    return figure


def _compute_extent(clients: int, classes: int) -> tuple[float, float]:
    """Return width and height of all cells, in inches."""
    width = classes * (0.6 if classes <= _FEW else 0.135)
    height = clients * (0.4 if clients <= _FEW else 0.075)
    return float(np.clip(width, 4.5, 16)), float(np.clip(height, 2.4, 9))


def _draw_cells(axes: Axes, table: NDArray[Any]) -> AxesImage:
    """Colour every cell that is not empty, and write the counts if there is room."""
    colours = ListedColormap(colormaps["YlGnBu"](np.linspace(0.05, 1, 256)))
    norm = PowerNorm(0.6, vmin=0, vmax=max(int(table.max()), 1))  # small counts differ visibly
    image = axes.imshow(
        np.ma.masked_equal(table, 0), colours, norm, aspect="auto", interpolation="nearest"
    )
    axes.set_facecolor(_EMPTY)
    if max(table.shape) <= _FEW:
        for (k, c), count in np.ndenumerate(table):
            ink = _NOUGHT if count == 0 else "white" if norm(count) > 0.6 else INK
            axes.text(c, k, f"{count:,}", ha="center", va="center", color=ink, fontsize=9)
    if max(table.shape) <= _MANY:
        axes.set_xticks(np.arange(1, table.shape[1]) - 0.5, minor=True)
        axes.set_yticks(np.arange(1, table.shape[0]) - 0.5, minor=True)
        axes.grid(which="minor", color="white", linewidth=1.5 if max(table.shape) <= _FEW else 0.4)
    return image


def _label_cells(axes: Axes, client_names: Sequence[str], class_names: Sequence[str]) -> None:
    """Name the classes (every one up to `_MANY`) and the clients (number them if many)."""
    few = len(class_names) <= _FEW
    shown = range(0, len(class_names), -(-len(class_names) // _MANY))
    slanted = few and max(map(len, class_names)) > 7
    axes.set_xticks(
        shown,
        [class_names[c] for c in shown],
        parse_math=False,
        fontsize=10 if few else 7,
        rotation=35 if slanted else 0 if few else 90,
        ha="right" if slanted else "center",
        rotation_mode="anchor" if slanted else "default",
    )
    if len(client_names) <= _FEW:
        axes.set_yticks(range(len(client_names)), client_names, parse_math=False)
    else:
        axes.yaxis.set_major_locator(MaxNLocator(11, integer=True))
    axes.set_ylabel("client", color=INK)


def _draw_totals(axes: Axes, totals: NDArray[Any], cells: Axes) -> None:
    """Draw a bar for each client's total [K], level with its row of cells."""
    top = max(int(totals.max()), 1)
    axes.set_yticks([])
    axes.set_title("samples", fontsize=9, color=INK, loc="left")
    if len(totals) <= _FEW:
        bars = axes.barh(np.arange(len(totals)), totals, height=0.7, color=_BAR)
        axes.bar_label(bars, fmt="{:,.0f}", padding=3, fontsize=9, color=INK)
        axes.set(xlim=(0, 1.5 * top), ylim=cells.get_ylim(), xticks=[])
    else:
        edges = np.arange(len(totals) + 1) - 0.5
        axes.stairs(totals, edges, orientation="horizontal", fill=True, color=_BAR)
        axes.set(xlim=(0, 1.05 * top), ylim=cells.get_ylim())
        axes.xaxis.set_major_locator(MaxNLocator(3, integer=True))
        axes.xaxis.set_major_formatter("{x:,.0f}")
