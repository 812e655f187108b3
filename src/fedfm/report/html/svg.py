"""The basis of all charts: scales with ticks, and SVG pictures with escaped texts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from xml.etree.ElementTree import Element, SubElement, tostring

import numpy as np
from markupsafe import Markup
from matplotlib.ticker import LogLocator, MaxNLocator
from numpy.typing import ArrayLike

from fedfm.report.html.load import Floats

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
WIDTH = 560.0
"""The width of all charts; style.css enlarges letters on narrow screens, where charts shrink."""
LETTER, LEGEND_MARK, LEGEND_ROW, GAP = 10.5, 46.0, 26.0, 14.0
"""The width of a letter at most, and the sizes of a legend's entry."""
LONGEST_LABEL = 46
COLOURS, DASHES = 8, 6
"""How many of each style.css has."""


@dataclass(frozen=True)
class Scale:
    """Map values from `low` to `high` to places from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, values: ArrayLike) -> Floats:
        """Return the places of values."""
        inside = np.clip(np.asarray(values, float), self.low, self.high)
        low, high, at = (np.log10(v) if self.log else v for v in (self.low, self.high, inside))
        shares = (at - low) / (high - low)
        return np.asarray(self.start + shares * (self.end - self.start))

    @property
    def ticks(self) -> list[tuple[float, float]]:
        """Return a handful of round numbers on the scale, each with its place."""
        if not self.log:
            ticks = MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]).tick_values(self.low, self.high)
        else:
            steps = (1.0, 2.0, 5.0) if self.high / self.low < 200 else (1.0,)
            ticks = LogLocator(subs=steps, numticks=7).tick_values(self.low, self.high)
        shown = [t for t in ticks if self.low * (1 - 1e-9) <= t <= self.high * (1 + 1e-9)]
        return list(zip(shown, self(shown), strict=True))


@dataclass(frozen=True)
class Group:
    """A part of a picture, to which texts, lines and areas are added."""

    element: Element

    def group(self, kind: str, number: int | None = None) -> "Group":
        """Add a group; with a number it belongs to that method and is filtered with it."""
        styles = {"class": kind}
        if number is not None:
            styles = {"class": f"{kind} {style_classes(number)}", "data-method": str(number)}
        return Group(SubElement(self.element, "g", styles))

    def text(self, x: float, y: float, content: str, kind: str = "") -> None:
        """Add a text at a place."""
        styles = {"class": kind} if kind else {}
        text = SubElement(self.element, "text", {"x": f"{x:.1f}", "y": f"{y:.1f}"} | styles)
        text.text = content

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str = "") -> None:
        """Add a straight line."""
        self.path(f"M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}", kind)

    def path(self, drawn: str, kind: str) -> None:
        """Add a line or an area."""
        SubElement(self.element, "path", {"class": kind, "d": drawn})

    def legend(self, labels: dict[int, str], top: float, mark: "Mark") -> float:
        """Add a legend in columns below `top`, and return where it ends.

        `mark(entry, x, y, number)` draws what stands before a label.
        """
        longest = min(max(map(len, labels.values())), LONGEST_LABEL)
        columns = max(1, int(WIDTH / (LEGEND_MARK + LETTER * longest + GAP)))
        for place, (number, label) in enumerate(labels.items()):
            row, column = divmod(place, columns)
            x, y = 4 + column * WIDTH / columns, top + LEGEND_ROW * (row + 0.5)
            entry = self.group("legend", number)
            mark(entry, x, y, number)
            short = label if len(label) <= LONGEST_LABEL else f"{label[: LONGEST_LABEL - 1]}…"
            entry.text(x + LEGEND_MARK - 8, y + 5, short)
        return top + LEGEND_ROW * -(-len(labels) // columns)


Mark = Callable[[Group, float, float, int], None]


def new_picture(name: str, kind: str, title: str, description: str) -> Group:
    """Return an empty SVG picture with a text alternative."""
    named = {"aria-labelledby": f"{name}-title {name}-description"}
    svg = Element("svg", {"role": "img", "class": kind} | named)
    SubElement(svg, "title", id=f"{name}-title").text = title
    SubElement(svg, "desc", id=f"{name}-description").text = description
    return Group(svg)


def to_markup(picture: Group, height: float) -> Markup:
    """Return a picture of that height as markup for the page."""
    picture.element.set("viewBox", f"0 0 {WIDTH:g} {height:g}")
    return Markup(tostring(picture.element, encoding="unicode"))  # ElementTree has escaped it


def style_classes(number: int) -> str:
    """Return the classes that give a method its colour and dashes."""
    return f"c{number % COLOURS} k{number % DASHES}"


def draw_through(x: Floats, y: Floats) -> str:
    """Return a path through points."""
    return "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in zip(x, y, strict=True))


def draw_markers(x: Floats, y: Floats, number: int) -> str:
    """Return a path of the method's marker at points."""
    corners = np.array(MARKERS[number % len(MARKERS)])
    return "".join(draw_through(*(at + corners).T) + "Z" for at in zip(x, y, strict=True))


def draw_rectangles(cells: Sequence[tuple[float, float]], width: float, height: float) -> str:
    """Return a path of equal rectangles, given their upper left corners."""
    size = f"h{width:.2f}v{height:.2f}h-{width:.2f}z"
    return "".join(f"M{x:.2f} {y:.2f}{size}" for x, y in cells)


def add_line_sample(entry: Group, x: float, y: float, number: int) -> None:
    """Add a piece of a method's line with its marker, as a legend shows it."""
    entry.line(x, y, x + 32, y, "line")
    entry.path(draw_markers(np.array([x + 16]), np.array([y]), number), "marks")


def draw_swatch(number: int) -> Markup:
    """Return a sample of a method's line."""
    styles = {"class": f"swatch {style_classes(number)}", "viewBox": "0 0 34 14"}
    swatch = Group(Element("svg", styles | {"aria-hidden": "true"}))
    add_line_sample(swatch, 1, 7, number)
    return Markup(tostring(swatch.element, encoding="unicode"))
