"""Accuracy over rounds and against bytes, as SVG; the page's script adds the values on hover."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree.ElementTree import Element

import numpy as np
from markupsafe import Markup
from matplotlib.ticker import MaxNLocator

from fedfm.report.html import drawing
from fedfm.report.html.drawing import Scale
from fedfm.report.html.grouping import Curve, Entry
from fedfm.report.html.reading import Floats

WIDTH, HEIGHT = 560.0, 370.0
LEFT, RIGHT, TOP, BOTTOM = 46.0, 548.0, 34.0, 316.0
UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "bytes"))
MARKED = 6
"""So many markers are on a line at most, each method's at other places."""
FEW = 4
"""More methods than these have fainter bands."""


@dataclass(frozen=True)
class Line:
    """A method's curve in a chart."""

    entry: Entry
    x: Floats
    curve: Curve

    def as_dict(self) -> dict[str, Any]:
        """For the page's script."""
        numbers = {"x": self.x, "y": self.curve.mean, "low": self.curve.low}
        numbers["high"] = self.curve.high
        rounded = {name: [float(f"{v:.5g}") for v in values] for name, values in numbers.items()}
        return {"method": self.entry.number, "label": self.entry.label, **rounded}


@dataclass(frozen=True)
class Chart:
    """A chart, in one or several scales, with the numbers behind it."""

    name: str
    heading: str
    caption: str
    pictures: tuple[Markup, ...]
    """The second is that with a logarithmic axis."""
    numbers: dict[str, Any]


def over_rounds(entries: Sequence[Entry], name: str) -> Chart | None:
    """Test accuracy over rounds."""
    lines = [Line(e, curve.rounds, curve) for e in entries if (curve := e.curve)]
    caption = "Mean over seeds; bands from the lowest seed to the highest."
    return _chart(name, "Accuracy over rounds", caption, lines, "round", "", False)


def against_bytes(entries: Sequence[Entry], name: str) -> Chart | None:
    """Test accuracy of the best round so far against all bytes sent until then."""
    curves = [(e, curve) for e in entries if (curve := e.reached)]
    most = max((curve.sent[-1] for _, curve in curves), default=0.0)
    size, unit = unit_of(most)
    lines = [Line(e, curve.sent / size, curve) for e, curve in curves]
    label = f"{unit} sent by server and clients"
    caption = "Of the best round so far; the further left, the less was sent."
    return _chart(name, "Accuracy against bytes sent", caption, lines, label, unit, True)


def unit_of(most: float) -> tuple[float, str]:
    """The unit of bytes for numbers up to `most`."""
    return next(((size, unit) for size, unit in UNITS if most >= size), UNITS[-1])


def _chart(
    name: str, heading: str, caption: str, lines: list[Line], label: str, unit: str, both: bool
) -> Chart | None:
    if not lines:
        return None
    y = _accuracy_scale(lines)
    scales = [_x_scale(lines, log) for log in ([False, True] if both else [False])]
    pictures = tuple(
        drawing.markup(_draw(f"{name}-{i}", heading, lines, x, y, label))
        for i, x in enumerate(scales)
    )
    numbers = {
        "x": [scale.as_dict() for scale in scales],
        "y": y.as_dict(),
        "label": unit or label,
        "lines": [line.as_dict() for line in lines],
    }
    return Chart(name, heading, caption, pictures, numbers)


def _accuracy_scale(lines: Sequence[Line]) -> Scale:
    low = min(float(line.curve.low.min()) for line in lines)
    high = max(float(line.curve.high.max()) for line in lines)
    ticks = MaxNLocator(5, steps=[1, 2, 5, 10]).tick_values(min(low, 99.0), max(high, low + 1))
    return Scale(max(ticks[0], 0.0), min(ticks[-1], 100.0), BOTTOM, TOP)


def _x_scale(lines: Sequence[Line], log: bool) -> Scale:
    least = min(float(line.x[line.x > 0].min(initial=np.inf)) for line in lines)
    most = max(float(line.x.max()) for line in lines)
    if log and 0 < least < most:
        return Scale(least, most, LEFT, RIGHT, log=True)
    start = 0.0 if most > 1 else most - 1
    return Scale(start, most, LEFT, RIGHT)


def _draw(
    name: str, heading: str, lines: Sequence[Line], x: Scale, y: Scale, label: str
) -> Element:
    svg = drawing.picture(name, (WIDTH, HEIGHT), heading, _told(lines, label))
    svg.set("class", "chart crowded" if len(lines) > FEW else "chart")
    _axes(svg, x, y, label)
    for line in lines:
        _draw_line(svg, line, x, y)
    return svg


def _told(lines: Sequence[Line], label: str) -> str:
    """The chart in words."""
    ends = "; ".join(
        f"{line.entry.label} ends at {line.curve.mean[-1]:.1f} % ({label} {line.x[-1]:,.4g})"
        for line in lines
    )
    return f"Test accuracy in percent: {ends}."


def _axes(svg: Element, x: Scale, y: Scale, label: str) -> None:
    grid = drawing.group(svg, "grid")
    for value, place in zip(y.ticks, y(y.ticks), strict=True):
        drawing.line(grid, LEFT, place, RIGHT, place)
        drawing.text(grid, LEFT - 9, place + 4.5, f"{value:g}", "end")
    for value, place in zip(x.ticks, x(x.ticks), strict=True):
        drawing.line(grid, place, BOTTOM, place, BOTTOM + 5, "tick")
        drawing.text(grid, place, BOTTOM + 22, f"{value:,g}", "middle")
    drawing.line(grid, LEFT, BOTTOM, RIGHT, BOTTOM, "base")
    drawing.text(grid, (LEFT + RIGHT) / 2, HEIGHT - 8, label, "middle name")
    drawing.text(grid, 2, 15, "test accuracy, %", "name")


def _draw_line(svg: Element, line: Line, x: Scale, y: Scale) -> None:
    parts = drawing.group(svg, "series", line.entry.number)
    across, up = x(line.x), y(line.curve.mean)
    if len(line.entry.runs) > 1:
        edge = np.concatenate([y(line.curve.high), y(line.curve.low)[::-1]])
        around = drawing.through(np.concatenate([across, across[::-1]]), edge)
        drawing.path(parts, f"{around}Z", "band")
    drawing.path(parts, drawing.through(across, up), "line")
    step = -(-len(across) // MARKED)
    marked = slice(line.entry.number % drawing.COLOURS * step // drawing.COLOURS, None, step)
    drawing.path(parts, drawing.marks(across[marked], up[marked], line.entry.number), "marks")
