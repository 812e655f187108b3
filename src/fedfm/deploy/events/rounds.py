"""Rounds, and the sums in them."""

import logging
from dataclasses import dataclass

from fedfm.deploy.events.base import Event


@dataclass(frozen=True)
class RoundBegan(Event):
    """The clients of a round are chosen."""

    text = "round {round} begins with clients {cohort}"
    level = logging.DEBUG
    round: int
    cohort: list[int]


@dataclass(frozen=True)
class RoundEnded(Event):
    """A round has a new model; it is told before the checkpoint is written."""

    text = "round {round} ended: model {model}"
    level = logging.DEBUG
    round: int
    model: str
    """The SHA-256 of the file model.safetensors that the new global model would be written to."""
    clients: list[int]
    left_out: list[int]
    seconds: float
    bytes_up: int
    bytes_down: int
    handshakes: int
    epsilon: float | None = None
    """Privacy spent by a client of all rounds, against whoever sees only sums over clients."""
    epsilon_server: float | None = None
    """The same against the server, where it sees single answers."""
    delta: float | None = None


@dataclass(frozen=True)
class RoundDropped(Event):
    """No sum of a round can be used: the model stays, and the round begins anew."""

    text = "round {round} is dropped ({times} in a row) and begins anew: {reason}"
    level = logging.ERROR
    round: int
    times: int
    reason: str


@dataclass(frozen=True)
class SumRepeated(Event):
    """A secure sum is lost by a fault, and is asked for again."""

    level = logging.WARNING
    question: str
    times: int
    reason: str
    groups: list[list[int]] | None = None
    """The halves that it is asked for in, so that one of them is not spoilt."""

    def __str__(self) -> str:
        """Return the log line."""
        halves = f"; asked again in the groups {self.groups}" if self.groups else ""
        return f"'{self.question}' is lost ({self.times} in a row): {self.reason}{halves}"
