"""The chart of the clients: a dot for the accuracy of each on its own samples."""

from collections.abc import Sequence

import numpy as np
from markupsafe import Markup

from fedfm.report.html.group import MethodGroup, thin_indices
from fedfm.report.html.load import Floats
from fedfm.report.html.svg import WIDTH, Group, Scale, new_picture, to_markup

ROW = 60.0
DOTS = 200
"""At most so many clients of a method are drawn."""


def draw_client_dots(entries: Sequence[MethodGroup], name: str) -> Markup | None:
    """Draw the accuracy of every client in the reported round, a row per method."""
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
    splits = " or ".join(sorted({run.split for entry, _ in rows for run in entry.runs}))
    title = f"{splits.capitalize()} accuracy of clients"
    picture = new_picture(name, "dots", title, description)
    grid = picture.group("grid")
    for value, place in scale.ticks:
        grid.line(place, 4, place, bottom)
        grid.text(place, bottom + 18, f"{value:g}", "middle")
    grid.text(WIDTH / 2, bottom + 40, f"{splits} accuracy of a client, %", "middle name")
    for i, (entry, values) in enumerate(rows):
        row = picture.group("series", entry.number)
        _draw_row(row, entry.label, scale(values), float(scale(np.median(values))), ROW * (i + 0.7))
    return to_markup(picture, bottom + 46)


def _draw_row(row: Group, label: str, places: Floats, median: float, centre: float) -> None:
    row.text(16, centre - 20, label, "label")
    row.path(_place_dots(places, centre), "dot")
    row.line(median, centre - 15, median, centre + 15, "median")


def _collect_accuracies(entry: MethodGroup) -> Floats:
    accuracies = np.sort([100 * value for run in entry.runs for value in run.client_accuracies])
    return accuracies[thin_indices(len(accuracies), DOTS)] if len(accuracies) else accuracies


def _place_dots(x: Floats, centre: float) -> str:
    """Return the dots as a path; dots at one place are stacked around it."""
    drawn = []
    for place, count in zip(*np.unique(x.round(), return_counts=True), strict=True):
        high = max(5, -(-count // 6))
        wide = -(-count // high)
        for i in range(count):
            right = place + (i // high - (wide - 1) / 2) * 5.5
            in_column = min(high, count - i // high * high)
            down = centre + (i % high - (in_column - 1) / 2) * 26 / high
            drawn.append(f"M{right:.1f} {down:.1f}h0")
    return "".join(drawn)
