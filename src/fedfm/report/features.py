"""Draw feature spaces by t-SNE: several methods side by side, or clients' local models."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from fedfm.core.errors import require
from fedfm.features.embedding import embed
from fedfm.features.feature_space import LocalSpaces, class_means, draw_sample
from fedfm.report.figure import INK, check_suffix, new_figure, save_figure

COLOURS = (
    "#332288", "#88ccee", "#44aa99", "#117733", "#999933",
    "#ddcc77", "#cc6677", "#882255", "#aa4499", "#777777",
)  # fmt: skip
"""Tol's muted colours and a grey, which colour-blind people can tell apart."""
MARKS = "os^DvPX<>h"
"""Markers of classes, for greyscale. After ten classes the pairs of colour and marker shift, so
that a hundred classes look different."""
NAMED = 20
"""More classes than so many are not named in a legend."""
PER_ROW = 4

_PALE = "#d9dce1"
_CLIENT_MARKS = "o^sDvPX<>h"
_ANCHOR: dict[str, Any] = {"marker": "*", "ms": 13, "mfc": "white", "mec": INK}
_KEY_INCHES = 1.25  # the width of a legend's entry


class Panel(NamedTuple):
    """Features [N, d] and labels [N] of samples, with a title and measures."""

    title: str
    features: NDArray[Any]
    labels: NDArray[Any]
    measures: Mapping[str, float]
    """NMI and silhouette, of all samples even where fewer are drawn."""


def draw_methods(
    panels: Sequence[Panel],
    class_names: Sequence[str],
    path: Path,
    *,
    title: str = "",
    points: int = 2000,
    seed: int = 0,
) -> Path:
    """Draw the features of several methods side by side, coloured by class.

    Stars are anchors: the mean of a class's features, placed by t-SNE with the others. At most
    `points` samples of each panel are drawn, the same ones where panels have equally many.
    """
    anchor = Line2D([], [], ls="", label="anchor", **_ANCHOR)
    keys = [*_make_class_keys(class_names), anchor]
    draws = [partial(_draw_panel, panel, points, seed) for panel in panels]
    return _draw_figure(draws, 3.9, keys, title, path)


def draw_clients(
    spaces: Sequence[LocalSpaces],
    class_names: Sequence[str],
    path: Path,
    *,
    title: str = "",
    points: int = 400,
    seed: int = 0,
) -> Path:
    """Draw the same samples by the clients' local models, a panel per method (Fig. 2).

    Colours are classes, markers are clients. A line joins the clients' anchors (means) of a class:
    the longer the lines, the less the feature spaces agree.
    """
    clients = max((len(space.features) for space in spaces), default=0)
    marks = [
        Line2D([], [], ls="", ms=7, label=f"client {k + 1}", **_client_style(k, INK))
        for k in range(clients)
    ]
    joined = Line2D([], [], color=INK, lw=1.3, label="a class's anchors", **_ANCHOR)
    keys = [*_make_class_keys(class_names, "o"), *marks, joined]
    draws = [partial(_draw_clients, space, points, seed) for space in spaces]
    return _draw_figure(draws, 5.2, keys, title, path)


def _draw_panel(panel: Panel, points: int, seed: int, axes: Axes) -> None:
    some = draw_sample(len(panel.labels), points, seed)
    labels, present = panel.labels[some], np.unique(panel.labels)
    means = class_means(panel.features, panel.labels)
    placed = embed(np.vstack([panel.features[some], means]), seed)
    size = float(np.clip(16_000 / len(some), 6, 26))
    for label in present:
        x, y = placed[: len(some)][labels == label].T
        axes.scatter(x, y, size, alpha=0.75, linewidths=0, **_class_style(label))
    for label, (x, y) in zip(present, placed[len(some) :], strict=True):
        look = _class_style(label) | {"marker": "*"}
        axes.scatter(x, y, 230, edgecolors=INK, linewidths=1.1, zorder=3, **look)
    measures = f"NMI {panel.measures['nmi']:.3f}   silhouette {panel.measures['silhouette']:.3f}"
    _label_axes(axes, panel.title, measures)


def _draw_clients(space: LocalSpaces, points: int, seed: int, axes: Axes) -> None:
    some = draw_sample(len(space.labels), points, seed)
    labels, (clients, _, d) = space.labels[some], space.features.shape
    means = np.stack([class_means(features, space.labels) for features in space.features])
    rows = [space.features[:, some].reshape(-1, d), means.reshape(-1, d)]
    placed = embed(np.vstack(rows), seed)
    samples, centres = np.split(placed, [len(rows[0])])
    for k, points_of_client in enumerate(np.split(samples, clients)):
        for label in np.unique(labels):
            look = _client_style(k, COLOURS[label % len(COLOURS)])
            of_class = points_of_client[labels == label].T
            axes.plot(*of_class, ls="", ms=4.5, mew=0.9, alpha=0.85, **look)
    for label, ends in zip(
        np.unique(space.labels), centres.reshape(clients, -1, 2).swapaxes(0, 1), strict=True
    ):
        look = _ANCHOR | {"mfc": COLOURS[label % len(COLOURS)]}
        axes.plot(*ends.T, color="white", lw=2.9, zorder=3)
        axes.plot(*ends.T, color=INK, lw=1.3, zorder=4, **look)
    measures = f"gap between the clients {space.gap:.2f}   silhouette {space.silhouette:.3f}"
    _label_axes(axes, space.title, measures)


def _class_style(label: int) -> dict[str, Any]:
    """Return the colour and the marker of a class."""
    tens, ones = divmod(int(label), len(COLOURS))
    return {"color": COLOURS[ones], "marker": MARKS[(ones + tens) % len(MARKS)]}


def _client_style(client: int, colour: str) -> dict[str, Any]:
    """Return a client's marker: filled for the first, hollow for the others."""
    face = colour if client == 0 else "none"
    mark = _CLIENT_MARKS[client % len(_CLIENT_MARKS)]
    return {"marker": mark, "markerfacecolor": face, "markeredgecolor": colour}


def _make_class_keys(class_names: Sequence[str], mark: str | None = None) -> list[Line2D]:
    """Return the legend's entries for the classes; `mark` replaces their markers."""
    if len(class_names) > NAMED:
        return []
    other = {"marker": mark} if mark else {}
    return [
        Line2D([], [], ls="", ms=7, label=name.replace("$", r"\$"), **_class_style(label) | other)
        for label, name in enumerate(class_names)
    ]


def _draw_figure(
    draws: Sequence[Callable[[Axes], None]],
    inches: float,
    keys: Sequence[Line2D],
    title: str,
    path: Path,
) -> Path:
    """Write a figure with square panels, each drawn by a function, and the legend below them."""
    check_suffix(path)
    require(len(draws) > 0, "there is nothing to draw")
    rows = ceil(len(draws) / PER_ROW)
    columns = ceil(len(draws) / rows)
    lines = ceil(len(keys) / int(columns * inches / _KEY_INCHES))
    figure = new_figure(inches * columns, (inches + 0.4) * rows + 0.5 + 0.3 * lines)
    look: dict[str, Any] = {"ncols": ceil(len(keys) / lines), "frameon": False, "labelcolor": INK}
    figure.legend(handles=keys, loc="outside lower center", **look)
    axes: list[Axes] = figure.subplots(rows, columns, squeeze=False).ravel().tolist()
    for draw, each in zip(draws, axes, strict=False):
        draw(each)
    for spare in axes[len(draws) :]:
        spare.set_axis_off()
    if title:
        figure.suptitle(title, color=INK, fontsize=13, parse_math=False)
    return save_figure(figure, path)


def _label_axes(axes: Axes, title: str, below: str) -> None:
    axes.set(xticks=[], yticks=[])
    axes.set_box_aspect(1)
    axes.margins(0.06)
    axes.spines[:].set_color(_PALE)
    axes.set_title(title, color=INK, fontsize=12, parse_math=False)
    axes.set_xlabel(below, color=INK, fontsize=10)
