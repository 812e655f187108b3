"""The checks of FedFM's convergence analysis as one report: a table and a picture."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.table import Table

from fedfm.methods import FedProto
from fedfm.paper.theory import convergence
from fedfm.paper.theory.convergence import TAUS, BoundCheck, fit_slope, select_tau
from fedfm.paper.theory.lemma import AnchorUpdate, compute_digits_updates
from fedfm.paper.theory.picture import draw_theory
from fedfm.paper.theory.quadratic import make_problem

STRENGTH = 0.1
"""lambda of the runs on the digits."""
RATE = -0.5
"""The exponent of T in Corollary 1."""
FIT = 0.05
"""How far a fitted exponent may be above it."""


class TheoryRow(NamedTuple):
    """A line of the table: what was checked, where, what was found, what it has to respect."""

    check: str
    where: str
    found: str
    limit: str
    holds: bool


@dataclass(frozen=True)
class TheoryReport:
    """Everything that was computed, the table, and where the picture is, if one was asked for."""

    anchors: dict[str, list[AnchorUpdate]]
    """Lemma 2, round by round, for each run on the digits."""
    fixed: list[BoundCheck]
    """Theorem 1."""
    shrinking: list[BoundCheck]
    """Corollary 1."""
    picture: Path | None = None

    @property
    def rows(self) -> list[TheoryRow]:
        """Return the rows of the table."""
        return [
            *(make_lemma_row(name, updates) for name, updates in self.anchors.items()),
            *(make_bound_row("Theorem 1", select_tau(self.fixed, tau)) for tau in TAUS),
            *(make_bound_row("Corollary 1", select_tau(self.shrinking, tau)) for tau in TAUS),
            *(make_slope_row(select_tau(self.shrinking, tau)) for tau in TAUS),
        ]

    @property
    def passed(self) -> bool:
        """Return whether every check holds."""
        return all(row.holds for row in self.rows)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values by name."""
        picture = str(self.picture) if self.picture else None
        rows = [row._asdict() for row in self.rows]
        return {"passed": self.passed, "rows": rows, "picture": picture}

    def __rich__(self) -> Table:
        """Return the table."""
        caption = f"picture: {self.picture}" if self.picture else None
        title = "convergence analysis; bounds are on the mean over t of E|grad Phi|^2"
        table = Table(title=title, title_justify="left", caption=caption)
        for head in ("check", "where", "found", "has to be", ""):
            table.add_column(head)
        for *texts, holds in self.rows:
            table.add_row(*map(str, texts), "yes" if holds else "[bold red]NO")
        return table


def check_theory(out: Path | None = None) -> TheoryReport:
    """Check Lemma 2, Theorem 1 and Corollary 1; with a folder `out`, draw `theory.png` there."""
    piece = FedProto(strength=STRENGTH)
    problem = make_problem()
    start = np.ones_like(problem.targets[0])
    anchors = {
        "all clients": compute_digits_updates(piece),
        "BatchNorm": compute_digits_updates(piece, norm="batch"),
        "3 of 10 clients": compute_digits_updates(piece, participation=0.3),
    }
    fixed = convergence.check_fixed_rate(problem, start)
    shrinking = convergence.check_shrinking_rate(problem, start)
    picture = out and draw_theory(anchors, fixed, shrinking, out / "theory.png")
    return TheoryReport(anchors, fixed, shrinking, picture)


def make_lemma_row(name: str, updates: list[AnchorUpdate]) -> TheoryRow:
    """Return the row of Lemma 2 for a run: the smallest decrease of its rounds."""
    least = min(each.decrease for each in updates)
    return TheoryRow(
        "Lemma 2",
        f"digits, {name}",
        f"Phi falls by {least:.1e}",
        f">= 0, {len(updates)} rounds",
        all(each.holds and each.exact for each in updates),
    )


def make_bound_row(check: str, cells: list[BoundCheck]) -> TheoryRow:
    """Return the row of one tau: the mean over t that comes nearest to its bound."""
    worst = max(cells, key=lambda each: each.average / each.bound.total)
    return TheoryRow(
        check,
        f"tau {worst.tau}, T {cells[0].rounds} to {cells[-1].rounds}",
        f"{worst.average:.3f} at T {worst.rounds}",
        f"<= {worst.bound.total:.3f}",
        all(each.holds and each.agrees for each in cells),
    )


def make_slope_row(cells: list[BoundCheck]) -> TheoryRow:
    """Return the row of one tau that says how fast the gradient falls with T."""
    fitted, last = fit_slope(cells), fit_slope(cells[-2:])
    return TheoryRow(
        "rate in T",
        f"tau {cells[0].tau}, eta 1/sqrt(tau T)",
        f"T^{fitted:.2f}, late T^{last:.2f}",
        f"<= T^{RATE}",
        max(fitted, last) <= RATE + FIT,
    )
