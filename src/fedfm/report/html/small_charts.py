"""The smaller pictures: clients' accuracies as dots, the partition as cells, the time as a bar."""

from collections.abc import Sequence
from typing import Any
from xml.etree.ElementTree import Element

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from fedfm.report.html import drawing
from fedfm.report.html.drawing import Scale
from fedfm.report.html.grouping import Entry, thinned
from fedfm.report.html.reading import Floats

WIDTH = 560.0
ROW = 60.0
DOTS = 200
"""So many clients of a method are drawn at most."""
SHADES = 6
"""How many style.css has, from few samples to many; no samples: shade 0."""
FEW = 20
"""So many clients and classes have room for numbers in their cells."""
MOST_CLIENTS = 200
"""So many clients of a partition are drawn at most."""
LEFT, TOP = 54.0, 30.0
"""Where its cells begin."""


def client_dots(entries: Sequence[Entry], name: str) -> Markup | None:
    """The validation accuracy of every client in the best round, a row for each method."""
    rows = [(entry, values) for entry in entries if len(values := _clients_of(entry))]
    if not rows:
        return None
    low = min(float(values.min()) for _, values in rows)
    scale = Scale(np.floor(min(low, 99.0) / 10) * 10, 100.0, 16, WIDTH - 16)
    bottom = ROW * len(rows) + 6
    told = "; ".join(
        f"{entry.label}: {values.min():.0f} to {values.max():.0f} %, median {np.median(values):.0f}"
        for entry, values in rows
    )
    svg = drawing.picture(name, (WIDTH, bottom + 46), "Validation accuracy of clients", told)
    svg.set("class", "dots")
    _dot_axis(svg, scale, bottom)
    for i, (entry, values) in enumerate(rows):
        _dot_row(svg, entry, scale, values, ROW * (i + 0.7))
    return drawing.markup(svg)


def _dot_axis(svg: Element, scale: Scale, bottom: float) -> None:
    grid = drawing.group(svg, "grid")
    for value, place in zip(scale.ticks, scale(scale.ticks), strict=True):
        drawing.line(grid, place, 4, place, bottom)
        drawing.text(grid, place, bottom + 18, f"{value:g}", "middle")
    drawing.text(grid, WIDTH / 2, bottom + 40, "validation accuracy of a client, %", "middle name")


def _dot_row(svg: Element, entry: Entry, scale: Scale, values: Floats, centre: float) -> None:
    row = drawing.group(svg, "series", entry.number)
    drawing.text(row, 16, centre - 20, entry.label, "label")
    drawing.path(row, _dots(scale(values), centre), "dot")
    median = float(scale(np.median(values)))
    drawing.line(row, median, centre - 15, median, centre + 15, "median")


def _clients_of(entry: Entry) -> Floats:
    found = np.sort([100 * value for run in entry.runs for value in run.client_accuracies])
    return found[thinned(len(found), DOTS)] if len(found) else found


def _dots(x: Floats, centre: float) -> str:
    """Dots that share a place are heaped around it."""
    drawn = []
    for place in np.unique(x.round()):
        count = int((x.round() == place).sum())
        high = max(5, -(-count // 6))
        wide = -(-count // high)
        for i in range(count):
            right = place + (i // high - (wide - 1) / 2) * 5.5
            in_column = min(high, count - i // high * high)
            down = centre + (i % high - (in_column - 1) / 2) * 26 / high
            drawn.append(f"M{right:.1f} {down:.1f}h0")
    return "".join(drawn)


def partition_cells(table: NDArray[np.int64], classes: Sequence[str], name: str) -> Markup:
    """How many samples of each class [K, C] each client holds: clients down, classes across."""
    shown = table[:MOST_CLIENTS]
    width = (WIDTH - LEFT - 4) / shown.shape[1]
    height = float(np.clip(600 / len(shown), 4, 24))
    size = (WIDTH, TOP + height * len(shown) + 34)
    sizes = table.sum(1)
    told = f"{len(table)} clients hold {sizes.min():,} to {sizes.max():,} samples each."
    svg = drawing.picture(name, size, "Samples of each class at each client", told)
    svg.set("class", "cells")
    shades = np.ceil(SHADES * np.sqrt(shown / max(int(shown.max()), 1))).astype(int)
    _cells(svg, shades, width, height)
    _cell_names(svg, classes, len(shown), width, height)
    drawing.text(svg, WIDTH / 2, size[1] - 10, "clients down, classes across", "middle name")
    if max(shown.shape) <= FEW:
        _cell_counts(svg, shown, shades, width, height)
    return drawing.markup(svg)


def _cells(svg: Element, shades: NDArray[Any], width: float, height: float) -> None:
    gap = 1.5 if max(shades.shape) <= FEW else 0.4
    for shade in range(SHADES + 1):
        places = [(LEFT + c * width, TOP + k * height) for k, c in np.argwhere(shades == shade)]
        drawing.path(svg, drawing.rectangles(places, width - gap, height - gap), f"s{shade}")


def _cell_names(
    svg: Element, classes: Sequence[str], clients: int, width: float, height: float
) -> None:
    axes = drawing.group(svg, "grid")
    for c in thinned(len(classes), FEW if max(map(len, classes)) < 3 else 6):
        drawing.text(axes, LEFT + (c + 0.5) * width, TOP - 9, str(classes[c])[:10], "middle")
    for k in thinned(clients, FEW if clients <= FEW else 8):
        drawing.text(axes, LEFT - 9, TOP + (k + 0.5) * height + 4.5, str(k), "end")


def _cell_counts(
    svg: Element, table: NDArray[Any], shades: NDArray[Any], width: float, height: float
) -> None:
    for (k, c), count in np.ndenumerate(table):
        kind = "count middle light" if shades[k, c] > SHADES // 2 else "count middle"
        x, y = LEFT + (c + 0.5) * width, TOP + (k + 0.5) * height + 4
        drawing.text(svg, x, y, f"{count:,}" if count else "·", kind)


def time_bar(seconds: dict[str, float], name: str) -> Markup:
    """Shares of the time, largest first."""
    whole = sum(seconds.values()) or 1.0
    told = ", ".join(f"{phase} {100 * s / whole:.0f} %" for phase, s in seconds.items())
    svg = drawing.picture(name, (WIDTH, 22), "Where the time went", told)
    svg.set("class", "bar")
    svg.set("preserveAspectRatio", "none")
    start = 0.0
    for i, share in enumerate(s / whole * WIDTH for s in seconds.values()):
        place = drawing.rectangles([(start, 0)], max(share - 1.5, 0.3), 22)
        drawing.path(svg, place, f"p{min(i, 6)}")
        start += share
    return drawing.markup(svg)
