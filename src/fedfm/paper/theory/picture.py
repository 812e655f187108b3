"""The picture of the theory: what was measured, the bounds over it, and Lemma 2 round by round."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from fedfm.paper.theory.convergence import REPEATS, BoundCheck, select_tau
from fedfm.paper.theory.lemma import AnchorUpdate
from fedfm.report.figure import COLOURS, INK, MARKERS, new_figure, save_figure, tidy_axes

_OTHERS = (INK, COLOURS[5], COLOURS[6])
"""The runs of Lemma 2, which are not numbers of local steps."""


def draw_theory(
    anchors: Mapping[str, Sequence[AnchorUpdate]],
    fixed: Sequence[BoundCheck],
    shrinking: Sequence[BoundCheck],
    path: Path,
) -> Path:
    """Draw the three panels to `path`, and return the path."""
    figure = new_figure(13, 4.9)
    theorem, corollary, lemma = figure.subplots(1, 3)
    _draw_bounds(theorem, fixed, "Theorem 1: the largest $\\eta$ it admits")
    _draw_bounds(corollary, shrinking, "Corollary 1: $\\eta = 1/\\sqrt{\\tau T}$")
    _draw_reference(corollary, shrinking)
    corollary.sharey(theorem)
    theorem.set_ylabel(r"$\min_t\ \mathbb{E}\,\|\nabla\Phi(w^{(t)};A^{(t)})\|^2$", color=INK)
    _draw_updates(lemma, anchors)
    for axes in (theorem, corollary, lemma):
        tidy_axes(axes)
    figure.legend(handles=_make_keys(fixed), loc="outside lower left", ncols=7, frameon=False)
    return save_figure(figure, path, dpi=130)


def _draw_bounds(axes: Axes, cells: Sequence[BoundCheck], title: str) -> None:
    """Draw for each tau the exact expectation (line), repeated runs (marks), bound (dashed)."""
    for i, tau in enumerate(sorted({each.tau for each in cells})):
        of_tau = select_tau(cells, tau)
        rounds = [each.rounds for each in of_tau]
        axes.plot(rounds, [each.bound.total for each in of_tau], "--", color=COLOURS[i], lw=1.6)
        axes.plot(rounds, [each.smallest for each in of_tau], color=COLOURS[i], lw=1.8)
        axes.plot(rounds, [each.sampled for each in of_tau], MARKERS[i], color=COLOURS[i], ms=6)
    axes.set(xscale="log", yscale="log")
    axes.set_xlabel("rounds T", color=INK)
    axes.set_title(title, color=INK, fontsize=11, loc="left")


def _draw_reference(axes: Axes, cells: Sequence[BoundCheck]) -> None:
    """Draw a line that falls as T^(-1/2), a little below the slowest curve."""
    rounds = np.array([100.0, 1000.0])
    level = 0.4 * min(each.smallest for each in cells)
    axes.plot(rounds, level * (rounds / 1000) ** -0.5, color=INK, lw=1.2)
    axes.annotate(
        r"$T^{-1/2}$", (100, 10**0.5 * level), (-6, 0), textcoords="offset points", ha="right",
        va="center", color=INK,
    )  # fmt: skip


def _draw_updates(axes: Axes, anchors: Mapping[str, Sequence[AnchorUpdate]]) -> None:
    """Draw the decrease of Phi in every round; a round without one would be missing."""
    for i, (name, updates) in enumerate(anchors.items()):
        rounds, falls = [each.round for each in updates], [each.decrease for each in updates]
        axes.plot(rounds, falls, marker=MARKERS[i], color=_OTHERS[i], ms=5, lw=1.4, label=name)
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("round t + 1", color=INK)
    axes.set_ylabel(r"$\Phi(w^{(t+1)};A^{(t)}) - \Phi(w^{(t+1)};A^{(t+1)})$", color=INK)
    axes.set_title("Lemma 2: what new anchors take off $\\Phi$, digits", fontsize=11, loc="left")
    axes.legend(frameon=False, fontsize=9)


def _make_keys(cells: Sequence[BoundCheck]) -> list[Line2D]:
    """Return the legend's entries for the first two panels."""
    taus = sorted({each.tau for each in cells})
    colours = [
        Line2D([], [], color=COLOURS[i], marker=MARKERS[i], lw=0, label=rf"$\tau$ = {tau}")
        for i, tau in enumerate(taus)
    ]
    return [
        *colours,
        Line2D([], [], color=INK, ls="--", label="bound"),
        Line2D([], [], color=INK, label="exact expectation"),
        Line2D([], [], color=INK, marker="o", lw=0, label=f"mean of {REPEATS} runs"),
    ]
