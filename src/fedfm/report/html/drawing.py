"""The ground of all charts: scales with ticks, and SVG elements whose texts are always escaped."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree.ElementTree import Element, SubElement, tostring

import numpy as np
from markupsafe import Markup
from matplotlib.ticker import LogLocator, MaxNLocator
from numpy.typing import ArrayLike

from fedfm.report.html.reading import Floats

MARKERS = (
    ((0, -4.5), (4.5, 0), (0, 4.5), (-4.5, 0)),
    ((-3.6, -3.6), (3.6, -3.6), (3.6, 3.6), (-3.6, 3.6)),
    ((0, -4.8), (4.4, 3.4), (-4.4, 3.4)),
    ((0, 4.8), (4.4, -3.4), (-4.4, -3.4)),
    ((-4.6, -1.6), (4.6, -1.6), (4.6, 1.6), (-4.6, 1.6)),
    ((-1.6, -4.6), (1.6, -4.6), (1.6, 4.6), (-1.6, 4.6)),
    ((0, -5), (1.5, -1.5), (5, 0), (1.5, 1.5), (0, 5), (-1.5, 1.5), (-5, 0), (-1.5, -1.5)),
)
"""Diamond, square, triangles, bars and a star, as corners."""
COLOURS, DASHES = 8, 6
"""How many of each style.css has."""


@dataclass(frozen=True)
class Scale:
    """Values from `low` to `high` onto places from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, values: ArrayLike) -> Floats:
        """The places of values."""
        low, high, found = (np.log10(v) if self.log else v for v in self._clipped(values))
        shares: Floats = (found - low) / (high - low)
        return self.start + shares * (self.end - self.start)

    def _clipped(self, values: ArrayLike) -> tuple[Any, Any, Any]:
        return self.low, self.high, np.clip(np.asarray(values, float), self.low, self.high)

    @property
    def ticks(self) -> list[float]:
        """Round numbers on the scale, a handful."""
        if not self.log:
            found = MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]).tick_values(self.low, self.high)
        else:
            steps = (1.0, 2.0, 5.0) if self.high / self.low < 200 else (1.0,)
            found = LogLocator(subs=steps, numticks=7).tick_values(self.low, self.high)
        return [float(t) for t in found if self.low * (1 - 1e-9) <= t <= self.high * (1 + 1e-9)]

    def as_dict(self) -> dict[str, float | bool]:
        """For the page's script."""
        return dict(vars(self))


def style_of(number: int) -> str:
    """The classes that give a method its colour and dashes."""
    return f"c{number % COLOURS} k{number % DASHES}"


def picture(name: str, size: tuple[float, float], title: str, description: str) -> Element:
    """An empty SVG picture with a text alternative."""
    svg = Element("svg", viewBox=f"0 0 {size[0]:g} {size[1]:g}", role="img")
    svg.set("aria-labelledby", f"{name}-title {name}-description")
    SubElement(svg, "title", id=f"{name}-title").text = title
    SubElement(svg, "desc", id=f"{name}-description").text = description
    return svg


def group(parent: Element, kind: str, number: int | None = None) -> Element:
    """A group of elements; with a number it belongs to that method, and is filtered with it."""
    found = SubElement(parent, "g", {"class": kind})
    if number is not None:
        found.set("class", f"{kind} {style_of(number)}")
        found.set("data-method", str(number))
    return found


def text(parent: Element, x: float, y: float, content: str, kind: str = "") -> Element:
    """A text at a place."""
    found = SubElement(parent, "text", x=f"{x:.1f}", y=f"{y:.1f}")
    found.text = content
    if kind:
        found.set("class", kind)
    return found


def line(parent: Element, x1: float, y1: float, x2: float, y2: float, kind: str = "") -> None:
    """A straight line."""
    path(parent, f"M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}", kind)


def path(parent: Element, drawn: str, kind: str) -> None:
    """Any line or surface."""
    SubElement(parent, "path", {"class": kind, "d": drawn})


def through(x: Floats, y: Floats) -> str:
    """A line through points."""
    return "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in zip(x, y, strict=True))


def marks(x: Floats, y: Floats, number: int) -> str:
    """The method's marker at points."""
    corners = MARKERS[number % len(MARKERS)]
    return "".join(
        through(*np.array([(a + dx, b + dy) for dx, dy in corners]).T) + "Z"
        for a, b in zip(x, y, strict=True)
    )


def rectangles(cells: Sequence[tuple[float, float]], width: float, height: float) -> str:
    """Equal rectangles by their upper left corners, as one path."""
    size = f"h{width:.2f}v{height:.2f}h-{width:.2f}z"
    return "".join(f"M{x:.2f} {y:.2f}{size}" for x, y in cells)


def markup(svg: Element) -> Markup:
    """The picture as it stands in the page."""
    return Markup(tostring(svg, encoding="unicode"))  # ElementTree has escaped it
