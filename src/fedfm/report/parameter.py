"""A measure of finished runs over a parameter of theirs."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator

from fedfm.report.figure import Line, begun, look, saved

Values = Mapping[str, Mapping[str, Sequence[float]]]
"""By the label of a line and the label on the axis, a value for each seed."""
WIDE = 20
"""From this ratio of the largest to the smallest value on an axis is logarithmic."""


def over_parameter(values: Values, axis: str, title: str, path: Path, measure: str) -> Path:
    """Draw the measure for some values of a parameter; a line for each of another's."""
    figure, axes = begun(title, path)
    labels = list(dict.fromkeys(label for line in values.values() for label in line))
    places = positions(labels)
    for n, (name, line) in enumerate(values.items()):
        shift = 0.0 if places else 0.12 * (n - (len(values) - 1) / 2)
        at = places or {label: i + shift for i, label in enumerate(labels)}
        found = sorted(
            (at[label], *_mean_and_spread(seeds)) for label, seeds in line.items() if seeds
        )
        if found:
            _draw(axes, Line(name, *np.array(found, float).T), n, joined=bool(places))
    _scale(axes, labels, places)
    axes.set(xlabel=axis, ylabel=measure)
    handles, _ = axes.get_legend_handles_labels()
    return saved(figure, axes, path, range(len(handles)) if len(values) > 1 else ())


def positions(labels: Sequence[str]) -> dict[str, float]:
    """The numbers that labels such as "0.5", "T_s = 20" or "50 %" end in; nothing unless all do."""
    number = re.compile(r"(?:^|[\s=])(\d+(?:\.\d+)?(?:e-?\d+)?)(?: ?%)?$")
    found = {label: float(match[1]) for label in labels if (match := number.search(label))}
    return found if len(found) == len(labels) else {}


def _mean_and_spread(values: Sequence[float]) -> tuple[float, float]:
    return float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def _draw(axes: Axes, line: Line, n: int, joined: bool) -> None:
    style = look(n) | ({} if joined else {"linestyle": "none"})
    spread = line.spread if line.spread.any() else None
    axes.errorbar(line.x, line.mean, spread, **style, elinewidth=1.1, capsize=3, label=line.label)


def _scale(axes: Axes, labels: Sequence[str], places: Mapping[str, float]) -> None:
    """Ticks at the values that were run; far apart on a logarithmic axis, which has room for 0."""
    positive = [place for place in places.values() if place]
    if positive and max(positive) / min(positive) >= WIDE:
        axes.set_xscale("symlog", linthresh=min(positive), linscale=0.5)
    at = list(places.values()) or list(range(len(labels)))
    axes.set_xticks(at, [f"{places[label]:g}" if places else label for label in labels])
    axes.xaxis.set_minor_locator(NullLocator())
    if not places:
        axes.set_xlim(-0.5, len(labels) - 0.5)
