"""The chart of the clients: a dot for the validation accuracy of each."""

from collections.abc import Sequence
from xml.etree.ElementTree import Element

import numpy as np
from markupsafe import Markup

from fedfm.report.html.group import MethodGroup, thin_indices
from fedfm.report.html.load import Floats
from fedfm.report.html.svg import (
    WIDTH,
    Scale,
    add_group,
    add_line,
    add_path,
    add_text,
    new_picture,
    set_height,
    to_markup,
)

ROW = 60.0
DOTS = 200
"""At most so many clients of a method are drawn."""


def draw_client_dots(entries: Sequence[MethodGroup], name: str) -> Markup | None:
    """Draw the validation accuracy of every client in the best round, a row per method."""
    rows = [(entry, values) for entry in entries if len(values := _collect_accuracies(entry))]
    if not rows:
        return None
    low = min(float(values.min()) for _, values in rows)
    scale = Scale(np.floor(min(low, 99.0) / 10) * 10, 100.0, 16, WIDTH - 16)
    bottom = ROW * len(rows) + 6
    description = "; ".join(
        f"{entry.label}: {values.min():.0f} to {values.max():.0f} %, median {np.median(values):.0f}"
        for entry, values in rows
    )
    svg = new_picture(name, "Validation accuracy of clients", description)
    set_height(svg, bottom + 46)
    svg.set("class", "dots")
    _draw_dot_axis(svg, scale, bottom)
    for i, (entry, values) in enumerate(rows):
        _draw_dot_row(svg, entry, scale, values, ROW * (i + 0.7))
    return to_markup(svg)


def _draw_dot_axis(svg: Element, scale: Scale, bottom: float) -> None:
    grid = add_group(svg, "grid")
    for value, place in zip(scale.ticks, scale(scale.ticks), strict=True):
        add_line(grid, place, 4, place, bottom)
        add_text(grid, place, bottom + 18, f"{value:g}", "middle")
    add_text(grid, WIDTH / 2, bottom + 40, "validation accuracy of a client, %", "middle name")


def _draw_dot_row(
    svg: Element, entry: MethodGroup, scale: Scale, values: Floats, centre: float
) -> None:
    row = add_group(svg, "series", entry.number)
    add_text(row, 16, centre - 20, entry.label, "label")
    add_path(row, _place_dots(scale(values), centre), "dot")
    median = float(scale(np.median(values)))
    add_line(row, median, centre - 15, median, centre + 15, "median")


def _collect_accuracies(entry: MethodGroup) -> Floats:
    accuracies = np.sort([100 * value for run in entry.runs for value in run.client_accuracies])
    return accuracies[thin_indices(len(accuracies), DOTS)] if len(accuracies) else accuracies


def _place_dots(x: Floats, centre: float) -> str:
    """Return the dots as a path; dots at one place are stacked around it."""
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
