"""Learning-rate schedules over the rounds of a run, or over the local steps of a round."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from fedfm.core.errors import require


@dataclass(frozen=True)
class Schedule:
    """What the learning rate is multiplied with, in every round or in every local step.

    Over rounds, a client's rate is constant in a round. Over steps, it starts anew in every round,
    as the moments do: clients take unequal numbers of steps, so a count over the whole run would
    give every client a rate of its own.

    Examples:
        >>> Schedule("step", period=2, gamma=0.5, rounds=6).factors(round=4, steps=3)
        (0.25, 0.25, 0.25)
        >>> Schedule(warmup=3, unit="step").factors(round=4, steps=5)
        (0.25, 0.5, 0.75, 1.0, 1.0)
    """

    kind: str = "constant"
    """How the rate changes after the warm-up."""
    unit: Literal["round", "step"] = "round"
    """Whether rounds or the local steps of a round are counted."""
    warmup: int = 0
    """Over so many units the rate rises, linearly."""
    period: int = 0
    """step: units between two decays; cosine, linear: units of the decay, 0: all rounds."""
    gamma: float = 0.1
    """step, exponential: the factor of a decay."""
    final: float = 0.0
    """cosine, linear: where the decay ends, as a fraction of the learning rate."""
    rounds: int = 1
    """The rounds of the run."""

    @property
    def depends_on_total(self) -> bool:
        """Whether the rate of a round depends on how many rounds the run has."""
        return self.kind in ("cosine", "linear") and self.unit == "round" and not self.period

    @property
    def is_constant(self) -> bool:
        """Whether the rate never changes."""
        return self.kind == "constant" and not self.warmup

    def check(self) -> None:
        """Refuse a schedule that does not fit the run."""
        gradual, over_steps = self.kind in ("cosine", "linear"), self.unit == "step"
        require(
            self.period > 0 or not (self.kind == "step" or (gradual and over_steps)),
            f"lr_schedule = '{self.kind}' needs lr_period, a number of {self.unit}s",
        )
        require(
            self.final > 0 or not (gradual and over_steps),
            f"lr_schedule = '{self.kind}' over steps needs lr_final > 0: clients with more than "
            f"{self.warmup + self.period} steps would stop learning",
        )
        if not over_steps:
            self._check_length(self.rounds, "the run has", "rounds")
            early = gradual and self.period > 0 and self.length < self.rounds
            require(
                self.final > 0 or not early,
                f"the learning rate would be 0 from round {self.length + 1} on: raise lr_final or "
                "lr_period",
            )

    def check_steps(self, steps: int) -> None:
        """Refuse a schedule over more steps than any client takes in a round."""
        if self.unit == "step":
            self._check_length(steps, "no client takes more steps in a round than", "epochs")

    @property
    def length(self) -> int:
        """The units of the warm-up and of one period."""
        return self.warmup + (self.period if self.kind in ("step", "cosine", "linear") else 0)

    def _check_length(self, units: int, why: str, remedy: str) -> None:
        require(
            self.is_constant or (self.length <= units and self.warmup < units),
            f"the learning-rate schedule takes {self.length} {self.unit}s (lr_warmup and "
            f"lr_period), but {why} {units}: lower them, or raise {remedy}",
        )

    def factors(self, round: int, steps: int) -> tuple[float, ...]:
        """Return the factors of a round's local steps; none where the rate never changes."""
        if self.is_constant:
            return ()
        if self.unit == "round":
            return (self.factor(round),) * steps
        return tuple(self.factor(step) for step in range(steps))

    def factor(self, position: int) -> float:
        """Return the factor at a round or a step, from 0."""
        if position < self.warmup:
            return (position + 1) / (self.warmup + 1)
        return KINDS[self.kind](self, position - self.warmup)

    def _decayed(self, position: int) -> float:
        """Return the share of the decay that is over."""
        return min(1.0, position / (self.period or max(1, self.rounds - self.warmup)))


CONSTANT = Schedule()
"""The schedule of a rate that never changes."""
KINDS: dict[str, Callable[[Schedule, int], float]] = {
    "constant": lambda schedule, t: 1.0,
    "step": lambda schedule, t: schedule.gamma ** (t // schedule.period),
    "exponential": lambda schedule, t: schedule.gamma**t,
    "cosine": lambda schedule, t: (
        schedule.final + (1 - schedule.final) * (1 + math.cos(math.pi * schedule._decayed(t))) / 2
    ),
    "linear": lambda schedule, t: 1 + (schedule.final - 1) * schedule._decayed(t),
}
"""The factor so many units after the warm-up, by the kind of schedule."""
