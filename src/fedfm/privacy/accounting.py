"""Compute the epsilon of a number of answers, by dp-accounting.

Answers with Gaussian noise compose exactly, even where each depends on those before it: 1/sigma^2
adds up (J. Dong, A. Roth, W. J. Su. Gaussian Differential Privacy. JRSS B 84, 2022). What remains
is one Gaussian mechanism, and dp-accounting computes its epsilon exactly (B. Balle, Y.-X. Wang.
Improving the Gaussian Mechanism for Differential Privacy. ICML 2018, Theorem 8).
"""

import math
from typing import Any, NamedTuple

from fedfm.core.errors import missing_package_error, require
from fedfm.privacy.config import Privacy


class Epsilon(NamedTuple):
    """The privacy loss of a client's answers, and the adversary that it holds against."""

    value: float
    delta: float
    rounds: int
    """Updates that the client sent."""
    anchor_rounds: int
    """Reports that the client sent."""
    seen: str
    """What the adversary sees."""


def compute_epsilon(privacy: Privacy, rounds: int, anchor_rounds: int = 0) -> Epsilon:
    """Compute epsilon of updates and reports against those who see only sums over clients."""
    others = f"only sums over clients, {privacy.colluders} of whom may collude"
    value = _epsilon(privacy, _loss(privacy, rounds, anchor_rounds))
    return Epsilon(value, privacy.delta, rounds, anchor_rounds, others)


def compute_epsilon_alone(
    privacy: Privacy, fewest: int, rounds: int, anchor_rounds: int = 0
) -> Epsilon:
    """Compute epsilon against a server that sees every answer, without secure sums.

    Only the client's own share of the noise protects it then; `fewest` as in `Privacy.update`.
    """
    loss = privacy.noise_shares(fewest) * _loss(privacy, rounds, anchor_rounds)
    seen = "a client's own answers"
    return Epsilon(_epsilon(privacy, loss), privacy.delta, rounds, anchor_rounds, seen)


def noise_for(epsilon: float, delta: float, rounds: int, anchor_rounds: int = 0) -> float:
    """Return the sigma, the same for updates and reports, that spends `epsilon` on all of them."""
    require(0 < epsilon < math.inf, f"epsilon must be positive, not {epsilon}")
    require(0 < delta < 1, f"delta must be in (0, 1), not {delta}")
    require(min(rounds, anchor_rounds) >= 0, "rounds must be >= 0")
    once: float = import_dp_accounting().get_sigma_gaussian(epsilon, delta)
    return once * math.sqrt(rounds + anchor_rounds)


def describe_epsilon(epsilon: Epsilon) -> str:
    """Describe epsilon in a line; it is rounded up."""
    answers = f"{epsilon.rounds} updates and {epsilon.anchor_rounds} reports of a client"
    if math.isinf(epsilon.value):
        return f"not differentially private: no noise, under: {answers}"
    return (
        f"({math.ceil(epsilon.value * 100) / 100:.2f}, {epsilon.delta:g})-differentially private "
        f"per client, under: {answers}; against whoever sees {epsilon.seen}"
    )


def _loss(privacy: Privacy, rounds: int, anchor_rounds: int) -> float:
    """Return the sum of 1/sigma^2 over all answers."""
    require(min(rounds, anchor_rounds) >= 0, "rounds must be >= 0")
    answers = ((rounds, privacy.noise), (anchor_rounds, privacy.anchor_noise))
    return sum(count / noise / noise if noise else math.inf for count, noise in answers if count)


def _epsilon(privacy: Privacy, loss: float) -> float:
    if loss in (0, math.inf):
        return loss
    value: float = import_dp_accounting().get_epsilon_gaussian(1 / math.sqrt(loss), privacy.delta)
    return float(value)


def import_dp_accounting() -> Any:
    """Import dp-accounting; raise a `UserError` if it is not installed."""
    try:
        import dp_accounting
    except ImportError as problem:
        raise missing_package_error("[privacy] needs an accountant", "privacy") from problem
    return dp_accounting
