"""Charts of sweeps: a line over one setting; over two settings a heat map, or dots of a search."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup
from matplotlib.ticker import MaxNLocator

from fedfm.grid.sweep import LOG_RATIO, PREFIX
from fedfm.report.html import svg
from fedfm.report.html.labels import group_pairs
from fedfm.report.html.load import LoadedRun
from fedfm.report.html.svg import WIDTH, Group, Scale
from fedfm.report.tables.statistics import TableMetric, compute_deviation, get_table_metric

SHADES = 6
"""How many style.css has, from the worst to the best."""
LEFT, RIGHT, TOP, BOTTOM = 96.0, 540.0, 44.0, 300.0
LETTER = 7.0
"""The width of a letter of a tick, at most."""


FRAMED, BARS = "; the best is framed", ", with one standard deviation to either side"
"""What the captions of the charts say."""


ACCURACY = get_table_metric("val_accuracy")


class Tried(NamedTuple):
    """One setting of a sweep, and its validation values over seeds, accuracies in percent."""

    values: tuple[str, ...]
    mean: float
    deviation: float | None
    seeds: int
    measure: TableMetric = ACCURACY

    @property
    def text(self) -> str:
        """Return mean and deviation."""
        return self.measure.text(self.mean) + self.measure.spread(self.deviation)

    @property
    def rank(self) -> float:
        """Return a number that is lower for better settings."""
        return -self.measure.better * self.mean


@dataclass(frozen=True)
class SweptSettings:
    """A sweep: its keys, and what was tried, the best first."""

    name: str
    keys: tuple[str, ...]
    tried: tuple[Tried, ...]

    @property
    def measure(self) -> TableMetric:
        """What was compared."""
        return self.tried[0].measure

    @property
    def framed(self) -> bool:
        """Whether the chart frames the best; a line shows it anyway."""
        return len(self.keys) > 1 or self.numbers(0) is None

    def numbers(self, place: int) -> list[float] | None:
        """Return the values of a key as numbers; None if some are not."""
        try:
            return [float(each.values[place]) for each in self.tried]
        except ValueError:
            return None

    def texts(self, place: int) -> list[str]:
        """Return the different values of a key, numbers in their order."""
        texts = list(dict.fromkeys(each.values[place] for each in self.tried))
        return sorted(texts, key=float) if self.numbers(place) else sorted(texts)


def list_sweeps(runs: Sequence[LoadedRun]) -> list[dict[str, Any]]:
    """Return what the page shows of every sweep: a chart of one or two settings, and a table."""
    cells = [
        ((recipe, tuple(cell.items())), run)
        for run in runs
        for recipe, cell in run.cells.items()
        if recipe.startswith(PREFIX)
    ]
    tried = group_pairs(
        ((recipe, tuple(key for key, _ in cell)), measured)
        for (recipe, cell), several in group_pairs(cells).items()
        if (measured := _measure(cell, several))
    )
    return [
        _describe(SweptSettings(recipe, keys, tuple(sorted(each, key=lambda t: t.rank))), n)
        for n, ((recipe, keys), each) in enumerate(tried.items())
    ]


def _measure(cell: Sequence[tuple[str, str]], runs: Sequence[LoadedRun]) -> Tried | None:
    """Return what the runs of a cell reached; None if no run has a value."""
    measure = get_table_metric(f"val_{runs[0].config['training'].get('select_by') or 'accuracy'}")
    values = [value for run in runs if (value := measure.of(run)) is not None]
    texts = tuple(label.split(" = ", 1)[-1] for _, label in cell)
    if not values:
        return None
    mean, deviation = float(np.mean(values)), compute_deviation(values)
    return Tried(texts, mean, deviation, len(values), measure)


def _describe(sweep: SweptSettings, number: int) -> dict[str, Any]:
    return {
        "title": f"Sweep over {' and '.join(sweep.keys)}",
        "name": f"sweep-{number}",
        "chart": draw_sweep(sweep, f"sweep-{number}-chart"),
        "caption": f"Mean over seeds{FRAMED if sweep.framed else BARS}.",
        "heads": (*sweep.keys, "seeds", sweep.measure.heading),
        "rows": [(*each.values, str(each.seeds), each.text) for each in sweep.tried],
    }


def draw_sweep(sweep: SweptSettings, name: str) -> Markup | None:
    """Draw a sweep over one or two settings; None if there are more."""
    if len(sweep.keys) > 2:
        return None
    best = sweep.tried[0]
    setting = ", ".join(f"{k} {v}" for k, v in zip(sweep.keys, best.values, strict=True))
    about = f"Best of {len(sweep.tried)}: {setting} with {best.text}{sweep.measure.unit}."
    title = f"{sweep.measure.heading.removesuffix(' (%)').capitalize()} over settings"
    numeric = [sweep.numbers(place) is not None for place in range(len(sweep.keys))]
    if not sweep.framed:
        return _draw_line(svg.new_picture(name, "chart", title, about), sweep)
    cells = np.prod([len(sweep.texts(place)) for place in range(len(sweep.keys))])
    if all(numeric) and 2 * len(sweep.tried) <= cells:
        return _draw_dots(svg.new_picture(name, "cells", title, about), sweep)
    return _draw_cells(svg.new_picture(name, "cells", title, about), sweep)


def _draw_cells(picture: Group, sweep: SweptSettings) -> Markup:
    """Draw a heat map: the last key across, the first down."""
    across, down = sweep.texts(len(sweep.keys) - 1), sweep.texts(0) if sweep.keys[1:] else [""]
    left = 14 + LETTER * max(map(len, down)) + 8
    width, height = (WIDTH - left - 4) / len(across), float(np.clip(300 / len(down), 22, 46))
    shades = _find_shades(sweep)
    for each, shade in zip(sweep.tried, shades, strict=True):
        row, column = (down.index(each.values[0]) if sweep.keys[1:] else 0), each.values[-1]
        at = left + across.index(column) * width, TOP + row * height
        picture.path(svg.draw_rectangles([at], width - 2, height - 2), f"s{shade}")
        if each is sweep.tried[0]:
            picture.path(svg.draw_rectangles([at], width - 2, height - 2), "best")
        if width > 44:
            _write(picture, at[0] + width / 2 - 1, at[1] + height / 2 + 3, each, shade)
    grid = picture.group("grid")
    for n in _thin(len(across), int((WIDTH - left) / (LETTER * max(map(len, across)) + 8))):
        grid.text(left + (n + 0.5) * width, TOP - 9, across[n], "middle")
    for n, text in enumerate(down):
        grid.text(left - 9, TOP + (n + 0.5) * height + 4.5, text, "end")
    grid.text(WIDTH, 15, f"{sweep.keys[-1]} →", "end name")
    if sweep.keys[1:]:
        grid.text(2, 15, f"{sweep.keys[0]} ↓", "name")
    return svg.to_markup(picture, TOP + height * len(down) + 4)


def _write(picture: Group, x: float, y: float, each: Tried, shade: int) -> None:
    light = " light" if shade > SHADES // 2 else ""
    digits = each.measure.decimals - 1
    picture.text(x, y, f"{each.mean:.{digits}f}", f"count middle{light}")


def _find_shades(sweep: SweptSettings) -> list[int]:
    """Return a shade for everything tried, from 1 for the worst."""
    ranks = np.array([each.rank for each in sweep.tried])
    share = (ranks.max() - ranks) / (np.ptp(ranks) or 1)
    return [int(shade) for shade in 1 + np.floor(share * (SHADES - 0.001))]


def _draw_dots(picture: Group, sweep: SweptSettings) -> Markup:
    """Draw a dot for every trial of a search: the last key across, the first up."""
    down, across = (np.array(sweep.numbers(place)) for place in (0, 1))
    x, y = _make_scale(across, LEFT, RIGHT), _make_scale(down, BOTTOM, TOP)
    _draw_axes(picture.group("grid"), x, y, sweep.keys[1], sweep.keys[0])
    places = list(zip(x(across), y(down), _find_shades(sweep), strict=True))
    for a, b, shade in reversed(places):  # the best last, on top
        picture.path(_circle(a, b, 8), f"s{shade}")
    picture.path(_circle(*places[0][:2], 8), "best")
    return svg.to_markup(picture, BOTTOM + 58)


def _draw_line(picture: Group, sweep: SweptSettings) -> Markup:
    """Draw the metric over one key, with a bar of one standard deviation to either side."""
    numbers = np.array(sweep.numbers(0))
    order = np.argsort(numbers)
    means = np.array([each.mean for each in sweep.tried])
    spread = np.array([each.deviation or 0.0 for each in sweep.tried])
    low, high = float((means - spread).min()), float((means + spread).max())
    measure = sweep.measure
    ticks = MaxNLocator(5, steps=[1, 2, 5, 10]).tick_values(
        low, max(high, low + measure.scale / 100)
    )
    x = _make_scale(numbers, LEFT, RIGHT)
    top = min(ticks[-1], 100.0) if measure.unit else ticks[-1]
    y = Scale(max(ticks[0], 0.0), top, BOTTOM, TOP)
    _draw_axes(picture.group("grid"), x, y, sweep.keys[0], measure.heading)
    series = picture.group("series c0 k0")
    series.path(svg.draw_through(x(numbers)[order], y(means)[order]), "line")
    for a, bottom, top in zip(x(numbers), y(means - spread), y(means + spread), strict=True):
        series.line(float(a), float(bottom), float(a), float(top), "line")
    series.path(svg.draw_markers(x(numbers), y(means), 0), "marks")
    return svg.to_markup(picture, BOTTOM + 58)


def _make_scale(numbers: Any, start: float, end: float) -> Scale:
    """Return a scale for the values of a key; a wide range of positive ones is logarithmic."""
    low, high = float(numbers.min()), float(numbers.max())
    if low > 0 and high / low >= LOG_RATIO:
        return Scale(low, high, start, end, log=True)
    margin = (high - low or 1.0) * 0.05
    return Scale(low - margin, high + margin, start, end)


def _draw_axes(grid: Group, x: Scale, y: Scale, across: str, up: str) -> None:
    for value, place in y.ticks:
        grid.line(LEFT - 12, place, RIGHT + 12, place)
        grid.text(LEFT - 20, place + 4.5, f"{value:g}", "end")
    for value, place in x.ticks:
        grid.line(place, BOTTOM + 12, place, BOTTOM + 17, "tick")
        grid.text(place, BOTTOM + 33, f"{value:g}", "middle")
    grid.line(LEFT - 12, BOTTOM + 12, RIGHT + 12, BOTTOM + 12, "base")
    grid.text((LEFT + RIGHT) / 2, BOTTOM + 52, across, "middle name")
    grid.text(2, 15, up, "name")


def _circle(x: float, y: float, radius: float) -> str:
    turn = f"a{radius:g} {radius:g} 0 1 0"
    return f"M{x - radius:.1f} {y:.1f}{turn} {2 * radius:g} 0{turn} {-2 * radius:g} 0z"


def _thin(count: int, most: int) -> range:
    """Return the places of at most so many labels."""
    return range(0, count, -(-count // max(most, 1)))
