"""Theorem 1 and Corollary 1: the bound, and what FedFM does under it on the quadratic problem."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import NamedTuple

import numpy as np

from fedfm.paper.theory.alternation import compute_expectation, simulate
from fedfm.paper.theory.quadratic import Array, Constants, Problem

TAUS = (1, 2, 5, 10)
ROUNDS = (10, 32, 100, 316, 1000)
REPEATS = 64


class Bound(NamedTuple):
    """The right-hand side of Theorem 1, term by term."""

    start: float
    """4 [Phi(w(0); A(0)) - Phi_inf] / (tau eta T)."""
    noise: float
    """4 eta L sigma^2 sum_k p_k^2."""
    noisy_drift: float
    """3 (tau - 1) eta^2 sigma^2 L^2."""
    drift: float
    """6 tau (tau - 1) eta^2 L^2 kappa^2."""

    @property
    def total(self) -> float:
        """Return the bound."""
        return sum(self)


def compute_bound(constants: Constants, *, rounds: int, tau: int, rate: float) -> Bound:
    """Return the bound of Theorem 1; with eta = 1/sqrt(tau T) it is that of Corollary 1."""
    step = rate * constants.smoothness
    return Bound(
        start=4 * constants.gap / (tau * rate * rounds),
        noise=4 * step * constants.variance * constants.spread,
        noisy_drift=3 * (tau - 1) * step**2 * constants.variance,
        drift=6 * tau * (tau - 1) * step**2 * constants.kappa2,
    )


@dataclass(frozen=True)
class BoundCheck:
    """E |grad Phi(w(t); A(t))|^2 over the rounds t = 0 .. T-1, and its bound."""

    tau: int
    rounds: int
    smallest: float
    """min_t of the exact expectation: what Theorem 1 bounds."""
    average: float
    """Its mean over t, never smaller: the proof bounds that too."""
    sampled: float
    """The mean of repeated runs at the round of the smallest expectation."""
    error: float
    """The standard error of `sampled`, exact too."""
    bound: Bound

    @property
    def holds(self) -> bool:
        """Return whether the bound holds, even for the mean over t."""
        return self.average <= self.bound.total

    @property
    def agrees(self) -> bool:
        """Return whether repeated runs agree with the exact expectation."""
        return abs(self.sampled - self.smallest) <= 4 * self.error


def check_bounds(
    problem: Problem, start: Array, tau: int, rate: float, ends: Sequence[int]
) -> list[BoundCheck]:
    """Check the first T rounds of one run, for every T in `ends`."""
    constants, most = problem.constants(start), max(ends)
    exact, deviation = compute_expectation(problem, start, rounds=most, tau=tau, rate=rate)
    runs = simulate(problem, start, rounds=most, tau=tau, rate=rate, repeats=REPEATS)
    lowest = {rounds: int(np.argmin(exact[:rounds])) for rounds in ends}
    return [
        BoundCheck(
            tau,
            rounds,
            smallest=float(exact[at]),
            average=float(exact[:rounds].mean()),
            sampled=float(runs[at].mean()),
            error=float(deviation[at]) / sqrt(REPEATS),
            bound=compute_bound(constants, rounds=rounds, tau=tau, rate=rate),
        )
        for rounds, at in lowest.items()
    ]


def check_fixed_rate(problem: Problem, start: Array) -> list[BoundCheck]:
    """Check Theorem 1 with the largest learning rate that it admits, for every tau and T."""
    largest = problem.constants(start).largest_rate
    checks = (check_bounds(problem, start, tau, largest(tau), ROUNDS) for tau in TAUS)
    return [cell for cells in checks for cell in cells]


def check_shrinking_rate(problem: Problem, start: Array) -> list[BoundCheck]:
    """Check Corollary 1, eta = 1/sqrt(tau T), where the theorem admits that eta."""
    largest = problem.constants(start).largest_rate
    rates = {(tau, rounds): 1 / sqrt(tau * rounds) for tau in TAUS for rounds in ROUNDS}
    return [
        cell
        for (tau, rounds), rate in rates.items()
        if rate <= largest(tau)
        for cell in check_bounds(problem, start, tau, rate, [rounds])
    ]


def select_tau(checks: Sequence[BoundCheck], tau: int) -> list[BoundCheck]:
    """Return the checks with that many local steps."""
    return [each for each in checks if each.tau == tau]


def fit_slope(cells: list[BoundCheck]) -> float:
    """Return the exponent of T in the smallest expectation, by a line through logarithms."""
    logs = np.log([(each.rounds, each.smallest) for each in cells])
    return float(np.polyfit(logs[:, 0], logs[:, 1], 1)[0])
