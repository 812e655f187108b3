"""Which method leads under a budget of rounds, traffic or client compute, and how sure that is."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import NamedTuple

import numpy as np

from fedfm.paper.comparison.rows import Array, MethodRow

BASELINE = "FedAvg"
SHARES = (0.1, 0.25, 1.0)
"""Budgets, in shares of what all rounds of FedAvg spend."""
ERRORS = 2.0
"""Two methods are told apart if they differ by more than so many standard errors."""


class Kind(NamedTuple):
    """What is spent."""

    attribute: str
    """Its name in a curve."""
    unit: str
    """Its unit, which follows a number."""


KINDS = (
    Kind("rounds", "rounds"),
    Kind("gigabytes", "GB sent"),
    Kind("passes", "rounds' worth of FedAvg's client compute"),
)


@dataclass(frozen=True)
class MethodWithinBudget:
    """What a method reaches within a budget."""

    method: str
    reached: float
    seeds: int


@dataclass(frozen=True)
class BudgetRanking:
    """The methods within a budget, the best first."""

    kind: Kind
    share: float
    budget: float
    standings: tuple[MethodWithinBudget, ...]
    deviation: float | None
    """Over seeds, pooled over the methods that have several; None if none has."""

    @property
    def leader(self) -> MethodWithinBudget:
        """The best method."""
        return self.standings[0]

    @property
    def rivals(self) -> list[MethodWithinBudget]:
        """The methods that are not told apart from the leader."""
        return [each for each in self.standings[1:] if not self._differs(each)]

    def _differs(self, other: MethodWithinBudget) -> bool:
        """Return whether the leader is ahead by more than `ERRORS` standard errors."""
        if self.deviation is None:
            return False
        error = self.deviation * sqrt(1 / self.leader.seeds + 1 / other.seeds)
        return self.leader.reached - other.reached > ERRORS * error


def judge_budgets(rows: Sequence[MethodRow]) -> Iterator[BudgetRanking]:
    """Yield who leads under every budget that a round fits into; FedAvg's rounds define them."""
    baseline = next((row for row in rows if row.method == BASELINE), None)
    for kind in KINDS if baseline else ():
        assert baseline is not None
        whole = float(getattr(baseline.curve, kind.attribute)[-1])
        rankings = (judge_budget(rows, kind, share, share * whole) for share in SHARES)
        yield from (ranking for ranking in rankings if ranking.standings)


def judge_budget(
    rows: Sequence[MethodRow], kind: Kind, share: float, budget: float
) -> BudgetRanking:
    """Return who leads within a budget; a method that cannot finish a round in it is left out."""
    standings, variances = [], []
    for row in rows:
        afforded = count_rounds(getattr(row.curve, kind.attribute), budget)
        if not afforded:
            continue
        seeds = len(row.rounds)
        reached = float(row.curve.reached[afforded - 1])
        standings.append(MethodWithinBudget(row.method, reached, seeds))
        if seeds > 1:
            variances += [float(row.curve.spread[afforded - 1]) ** 2] * (seeds - 1)
    deviation = sqrt(sum(variances) / len(variances)) if variances else None
    ranked = tuple(sorted(standings, key=lambda each: -each.reached))
    return BudgetRanking(kind, share, budget, ranked, deviation)


def count_rounds(spent: Array, budget: float) -> int:
    """Return how many rounds fit into a budget, given what is spent after each of them [T]."""
    return int(np.searchsorted(spent, budget * (1 + 1e-9), side="right"))
