"""Charts of accuracy over rounds and against bytes; the page's script shows values on hover."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree.ElementTree import Element

import numpy as np
from markupsafe import Markup
from matplotlib.ticker import MaxNLocator

from fedfm.report.html.group import Curve, MethodGroup
from fedfm.report.html.load import Floats
from fedfm.report.html.svg import (
    COLOURS,
    WIDTH,
    Scale,
    add_group,
    add_legend,
    add_line,
    add_line_sample,
    add_path,
    add_text,
    draw_markers,
    draw_rectangles,
    draw_through,
    new_picture,
    set_height,
    to_markup,
)

HEIGHT = 374.0
"""Without the legend."""
LEFT, RIGHT, TOP, BOTTOM = 46.0, 548.0, 34.0, 316.0
UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "bytes"))
MARKED = 6
"""The most markers on a line; each method has them at other places."""
FEW = 4
"""With more methods than this, bands are fainter."""


@dataclass(frozen=True)
class ChartLine:
    """A method's curve in a chart."""

    entry: MethodGroup
    x: Floats
    curve: Curve

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for the page's script."""
        numbers = {"x": self.x, "y": self.curve.mean, "low": self.curve.low}
        numbers["high"] = self.curve.high
        rounded = {name: [float(f"{v:.5g}") for v in values] for name, values in numbers.items()}
        return {"method": self.entry.number, "label": self.entry.label, **rounded}


@dataclass(frozen=True)
class Chart:
    """A chart in one or several scales, with its numbers."""

    name: str
    heading: str
    caption: str
    pictures: tuple[Markup, ...]
    """The second is that with a logarithmic axis."""
    numbers: dict[str, Any]


def draw_over_rounds(entries: Sequence[MethodGroup], name: str) -> Chart | None:
    """Draw test accuracy over rounds."""
    lines = [ChartLine(e, curve.rounds, curve) for e in entries if (curve := e.curve)]
    caption = "Mean over seeds, with a band from lowest to highest."
    return _make_chart(name, "Accuracy over rounds", caption, lines, "round", "", False)


def draw_against_bytes(entries: Sequence[MethodGroup], name: str) -> Chart | None:
    """Draw test accuracy of the best round so far against all bytes sent."""
    curves = [(e, curve) for e in entries if (curve := e.best_curve)]
    most = max((curve.sent[-1] for _, curve in curves), default=0.0)
    size, unit = choose_unit(most)
    lines = [ChartLine(e, curve.sent / size, curve) for e, curve in curves]
    label = f"{unit} sent by server and clients"
    caption = "Best round so far; further left is cheaper."
    return _make_chart(name, "Accuracy against bytes sent", caption, lines, label, unit, True)


def choose_unit(most: float) -> tuple[float, str]:
    """Return the unit of bytes for numbers up to `most`."""
    return next(((size, unit) for size, unit in UNITS if most >= size), UNITS[-1])


def _make_chart(
    name: str, heading: str, caption: str, lines: list[ChartLine], label: str, unit: str, both: bool
) -> Chart | None:
    if not lines:
        return None
    y = _make_accuracy_scale(lines)
    scales = [_make_x_scale(lines, log) for log in ([False, True] if both else [False])]
    pictures = tuple(
        to_markup(_draw_picture(f"{name}-{i}", heading, lines, x, y, label))
        for i, x in enumerate(scales)
    )
    numbers = {
        "x": [scale.as_dict() for scale in scales],
        "y": y.as_dict(),
        "label": unit or label,
        "lines": [line.as_dict() for line in lines],
    }
    return Chart(name, heading, caption, pictures, numbers)


def _make_accuracy_scale(lines: Sequence[ChartLine]) -> Scale:
    low = min(float(line.curve.low.min()) for line in lines)
    high = max(float(line.curve.high.max()) for line in lines)
    ticks = MaxNLocator(5, steps=[1, 2, 5, 10]).tick_values(min(low, 99.0), max(high, low + 1))
    return Scale(max(ticks[0], 0.0), min(ticks[-1], 100.0), BOTTOM, TOP)


def _make_x_scale(lines: Sequence[ChartLine], log: bool) -> Scale:
    least = min(float(line.x[line.x > 0].min(initial=np.inf)) for line in lines)
    most = max(float(line.x.max()) for line in lines)
    if log and 0 < least < most:
        return Scale(least, most, LEFT, RIGHT, log=True)
    start = 0.0 if most > 1 else most - 1
    return Scale(start, most, LEFT, RIGHT)


def _draw_picture(
    name: str, heading: str, lines: Sequence[ChartLine], x: Scale, y: Scale, label: str
) -> Element:
    svg = new_picture(name, heading, _describe(lines, label))
    svg.set("class", "chart crowded" if len(lines) > FEW else "chart")
    _draw_axes(svg, x, y, label)
    for line in lines:
        _draw_line(svg, line, x, y)
    labels = {line.entry.number: line.entry.label for line in lines}
    return set_height(svg, add_legend(svg, labels, HEIGHT + 6, add_line_sample))


def _describe(lines: Sequence[ChartLine], label: str) -> str:
    """Describe the chart in words."""
    ends = "; ".join(
        f"{line.entry.label} ends at {line.curve.mean[-1]:.1f} % ({label} {line.x[-1]:,.4g})"
        for line in lines
    )
    return f"Test accuracy in percent: {ends}."


def _draw_axes(svg: Element, x: Scale, y: Scale, label: str) -> None:
    grid = add_group(svg, "grid")
    for value, place in zip(y.ticks, y(y.ticks), strict=True):
        add_line(grid, LEFT, place, RIGHT, place)
        add_text(grid, LEFT - 9, place + 4.5, f"{value:g}", "end")
    for value, place in zip(x.ticks, x(x.ticks), strict=True):
        add_line(grid, place, BOTTOM, place, BOTTOM + 5, "tick")
        add_text(grid, place, BOTTOM + 22, f"{value:,g}", "middle")
    add_line(grid, LEFT, BOTTOM, RIGHT, BOTTOM, "base")
    add_text(grid, (LEFT + RIGHT) / 2, HEIGHT - 8, label, "middle name")
    add_text(grid, 2, 15, "test accuracy, %", "name")


def _draw_line(svg: Element, line: ChartLine, x: Scale, y: Scale) -> None:
    parts = add_group(svg, "series", line.entry.number)
    across, up = x(line.x), y(line.curve.mean)
    if len(line.entry.runs) > 1:
        edge = np.concatenate([y(line.curve.high), y(line.curve.low)[::-1]])
        around = draw_through(np.concatenate([across, across[::-1]]), edge)
        add_path(parts, f"{around}Z", "band")
    add_path(parts, draw_through(across, up), "line")
    step = -(-len(across) // MARKED)
    marked = slice(line.entry.number % COLOURS * step // COLOURS, None, step)
    add_path(parts, draw_markers(across[marked], up[marked], line.entry.number), "marks")


def draw_time_bar(seconds: dict[str, float], name: str) -> Markup:
    """Draw the shares of the phases of a run, largest first."""
    total = sum(seconds.values()) or 1.0
    labels = {
        i: f"{phase} {spent:.2f} s, {100 * spent / total:.0f} %"
        for i, (phase, spent) in enumerate(seconds.items())
    }
    svg = new_picture(name, "Where the time went", ", ".join(labels.values()))
    svg.set("class", "bar")
    start = 0.0
    for i, share in enumerate(spent / total * WIDTH for spent in seconds.values()):
        add_path(svg, draw_rectangles([(start, 0)], max(share - 1.5, 0.3), 22), _phase_class(i))
        start += share
    return to_markup(set_height(svg, add_legend(svg, labels, 32, _add_phase_sample)))


def _add_phase_sample(entry: Element, x: float, y: float, number: int) -> None:
    entry.attrib.pop("data-method")  # a phase is not a method: the filter must not hide it
    add_path(entry, draw_rectangles([(x + 16, y - 7)], 14, 14), _phase_class(number))


def _phase_class(number: int) -> str:
    return f"p{min(number, 6)}"
