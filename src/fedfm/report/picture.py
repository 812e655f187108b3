"""What all pictures have in common: a blank sheet, its ink, and files that are always the same."""

from pathlib import Path

from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fedfm.core.errors import require

INK = "#2b2b2b"
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#999999", "#000000")
"""Okabe and Ito's colours, which colour-blind people can tell apart."""


def check_picture(path: Path) -> None:
    """Refuse a picture of another kind, before anything is computed."""
    require(path.suffix in (".png", ".svg"), f"a picture ends in .png or .svg, not '{path.suffix}'")


def blank(width: float, height: float) -> Figure:
    """An empty figure, in inches, which no window shows."""
    figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def save(figure: Figure, path: Path, dpi: int = 150) -> Path:
    """Write the picture, bit for bit the same each time."""
    check_picture(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    dated = {"Date": None} if path.suffix == ".svg" else {}
    with rc_context({"svg.hashsalt": "fedfm"}):
        figure.savefig(path, dpi=dpi, metadata=dated)
    return path
