"""The beginning and the end of a run, and how good its models are."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from fedfm.deploy.events.base import Event


@dataclass(frozen=True)
class Started(Event):
    """The server has started, for the first time or again."""

    text = "fedfm {version}, config {config}: {rounds} rounds"
    config: str
    """The SHA-256 of the run's config.toml."""
    method: str
    rounds: int
    clients: int
    """How many clients the server waits for."""
    secure: bool
    version: str
    """The server's version of FedFM."""
    protocol: int


@dataclass(frozen=True)
class Scored(Event):
    """The model of a round was evaluated."""

    text = "round {round}: {numbers}"
    level = logging.DEBUG
    round: int
    numbers: Mapping[str, float | None]
    """Accuracies, losses and further metrics by name."""


@dataclass(frozen=True)
class Finished(Event):
    """The run is over, and its model is written."""

    text = "the result is the model of round {round}, {model}"
    round: int
    """The round whose model is the result."""
    model: str


@dataclass(frozen=True)
class Stopped(Event):
    """The server ends before the run is over."""

    text = "the server stops: {reason}"
    level = logging.ERROR
    reason: str


@dataclass(frozen=True)
class LogRepaired(Event):
    """An unfinished last line of the audit log, left by a killed server, was removed."""

    text = "an unfinished line of {bytes} bytes was removed from the audit log"
    level = logging.WARNING
    bytes: int
