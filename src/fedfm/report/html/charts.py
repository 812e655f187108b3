"""Charts of metrics over rounds, and of accuracy against bytes; a script shows values on hover."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup
from matplotlib.ticker import MaxNLocator

from fedfm.report.html import svg
from fedfm.report.html.group import MethodGroup, MetricCurve
from fedfm.report.html.load import Floats
from fedfm.report.html.svg import Group, Scale
from fedfm.report.tables.statistics import MEASURES, TableMetric

ACCURACY = MEASURES["test_accuracy"]
HEIGHT = 374.0
"""Without the legend."""
LEFT, RIGHT, TOP, BOTTOM = 46.0, 548.0, 34.0, 316.0
UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "bytes"))
MARKED = 6
"""The most markers on a line; each method has them at other places."""
FEW = 4
"""With more methods than this, bands are fainter."""


class ChartLine(NamedTuple):
    """A method's curve in a chart."""

    entry: MethodGroup
    x: Floats
    curve: MetricCurve

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for the page's script."""
        numbers = self.x, self.curve.mean, self.curve.low, self.curve.high
        rounded = ([float(f"{v:.5g}") for v in values] for values in numbers)
        named = dict(zip(("x", "y", "low", "high"), rounded, strict=True))
        return {"method": self.entry.number, "label": self.entry.label, **named}


class Chart(NamedTuple):
    """A chart in one or several scales, with its numbers."""

    name: str
    heading: str
    caption: str
    pictures: Sequence[Markup]
    """The second is that with a logarithmic axis."""
    numbers: dict[str, Any]


def draw_over_rounds(entries: Sequence[MethodGroup], name: str) -> Chart | None:
    """Draw test accuracy over rounds."""
    lines = [ChartLine(e, curve.rounds, curve) for e in entries if (curve := e.curve)]
    caption = "Mean over seeds, with a band from lowest to highest."
    return _draw_chart(name, "Accuracy over rounds", caption, lines, "round")


def draw_metric(entries: Sequence[MethodGroup], measure: TableMetric, name: str) -> Chart | None:
    """Draw another metric over rounds."""
    metric = measure.name.removeprefix("test_")
    curves = [(e, e.metric_curve(metric, measure.scale)) for e in entries]
    lines = [ChartLine(e, curve.rounds, curve) for e, curve in curves if curve]
    title = metric.upper() if metric == "auc" else metric.replace("_", " ").capitalize()
    heading = f"{title} over rounds"
    caption = "Mean over seeds, with a band from lowest to highest."
    return _draw_chart(name, heading, caption, lines, "round", measure=measure)


def draw_against_bytes(entries: Sequence[MethodGroup], name: str) -> Chart | None:
    """Draw test accuracy of the best round so far against all bytes sent."""
    curves = [(e, curve) for e in entries if (curve := e.best_curve)]
    size, unit = choose_unit(max((curve.sent[-1] for _, curve in curves), default=0.0))
    lines = [ChartLine(e, curve.sent / size, curve) for e, curve in curves]
    caption = "Best round so far; further left is cheaper."
    heading, of = "Accuracy against bytes sent", " sent by server and clients"
    return _draw_chart(name, heading, caption, lines, unit, of, logs=(False, True))


def choose_unit(most: float) -> tuple[float, str]:
    """Return the unit of bytes for numbers up to `most`."""
    return next(((size, unit) for size, unit in UNITS if most >= size), UNITS[-1])


def _draw_chart(
    name: str,
    heading: str,
    caption: str,
    lines: list[ChartLine],
    unit: str,
    of: str = "",
    logs: Sequence[bool] = (False,),
    measure: TableMetric = ACCURACY,
) -> Chart | None:
    """Draw a chart over `unit`, which the axis calls `unit` + `of`, for each kind of axis."""
    if not lines:
        return None
    y, scales = _make_y_scale(lines, measure), [_make_x_scale(lines, log) for log in logs]
    pictures = [
        _draw_picture(f"{name}-{i}", heading, lines, x, y, unit + of, measure)
        for i, x in enumerate(scales)
    ]
    numbers = {
        "x": [vars(scale) for scale in scales],
        "y": vars(y),
        "label": unit,
        "percent": measure.scale == 100,
        "lines": [line.as_dict() for line in lines],
    }
    return Chart(name, heading, caption, pictures, numbers)


def _make_y_scale(lines: Sequence[ChartLine], measure: TableMetric) -> Scale:
    low = min(float(line.curve.low.min()) for line in lines)
    high = max(float(line.curve.high.max()) for line in lines)
    if measure.scale != 100:
        ticks = MaxNLocator(5, steps=[1, 2, 5, 10]).tick_values(low, max(high, low + 1e-3))
        return Scale(ticks[0], ticks[-1], BOTTOM, TOP)
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
    name: str,
    heading: str,
    lines: Sequence[ChartLine],
    x: Scale,
    y: Scale,
    label: str,
    measure: TableMetric,
) -> Markup:
    percent, title = measure.scale == 100, measure.heading.removesuffix(" (%)")
    ends = "; ".join(
        f"{line.entry.label} ends at {f'{end:.1f} %' if percent else f'{end:.4g}'} "
        f"({label} {line.x[-1]:,.4g})"
        for line in lines
        for end in [line.curve.mean[-1]]
    )
    kind = "chart crowded" if len(lines) > FEW else "chart"
    about = f"{title.capitalize()}{' in percent' if percent else ''}: {ends}."
    picture = svg.new_picture(name, kind, heading, about)
    _draw_axes(picture.group("grid"), x, y, label, f"{title}, %" if percent else title)
    for line in lines:
        _draw_line(picture.group("series", line.entry.number), line, x, y)
    labels = {line.entry.number: line.entry.label for line in lines}
    return svg.to_markup(picture, picture.legend(labels, HEIGHT + 6, svg.add_line_sample))


def _draw_axes(grid: Group, x: Scale, y: Scale, label: str, title: str) -> None:
    for value, place in y.ticks:
        grid.line(LEFT, place, RIGHT, place)
        grid.text(LEFT - 9, place + 4.5, f"{value:g}", "end")
    for value, place in x.ticks:
        grid.line(place, BOTTOM, place, BOTTOM + 5, "tick")
        grid.text(place, BOTTOM + 22, f"{value:,g}", "middle")
    grid.line(LEFT, BOTTOM, RIGHT, BOTTOM, "base")
    grid.text((LEFT + RIGHT) / 2, HEIGHT - 8, label, "middle name")
    grid.text(2, 15, title, "name")


def _draw_line(series: Group, line: ChartLine, x: Scale, y: Scale) -> None:
    across, up = x(line.x), y(line.curve.mean)
    if len(line.entry.runs) > 1:
        edge = np.concatenate([y(line.curve.high), y(line.curve.low)[::-1]])
        around = svg.draw_through(np.concatenate([across, across[::-1]]), edge)
        series.path(f"{around}Z", "band")
    series.path(svg.draw_through(across, up), "line")
    step = -(-len(across) // MARKED)
    marked = slice(line.entry.number % svg.COLOURS * step // svg.COLOURS, None, step)
    series.path(svg.draw_markers(across[marked], up[marked], line.entry.number), "marks")


def draw_time_bar(seconds: dict[str, float], name: str) -> Markup:
    """Draw the shares of the phases of a run, largest first."""
    total = sum(seconds.values()) or 1.0
    labels = {
        i: f"{phase} {spent:.2f} s, {100 * spent / total:.0f} %"
        for i, (phase, spent) in enumerate(seconds.items())
    }
    picture = svg.new_picture(name, "bar", "Where the time went", ", ".join(labels.values()))
    start = 0.0
    for i, share in enumerate(spent / total * svg.WIDTH for spent in seconds.values()):
        _draw_phase(picture, (start, 0), max(share - 1.5, 0.3), 22, i)
        start += share
    return svg.to_markup(picture, picture.legend(labels, 32, _add_phase_sample))


def _add_phase_sample(entry: Group, x: float, y: float, number: int) -> None:
    entry.element.attrib.pop("data-method")  # not a method: the filter must not hide it
    _draw_phase(entry, (x + 16, y - 7), 14, 14, number)


def _draw_phase(
    group: Group, at: tuple[float, float], width: float, height: float, number: int
) -> None:
    group.path(svg.draw_rectangles([at], width, height), f"p{min(number, 6)}")
