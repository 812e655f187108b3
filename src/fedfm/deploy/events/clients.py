"""Clients that come and go, and their answers."""

import logging
from dataclasses import dataclass

from fedfm.deploy.events.base import Event


@dataclass(frozen=True)
class Joined(Event):
    """A client has a number and a node."""

    text = "client {client} is '{name}', node {node}"
    client: int
    name: str
    node: int
    key: str | None = None
    """The fingerprint of its public key."""


@dataclass(frozen=True)
class NodeRefused(Event):
    """A node may not take part."""

    kind = "refused"
    text = "node {node} is refused: {reason}"
    level = logging.WARNING
    node: int
    reason: str


@dataclass(frozen=True)
class Disconnected(Event):
    """A client's node is not connected any more."""

    text = "client {client} is not connected"
    client: int
    name: str | None = None


@dataclass(frozen=True)
class Asked(Event):
    """A question was sent to some nodes."""

    text = "asked {nodes} nodes '{question}'"
    level = logging.DEBUG
    audited = False
    question: str
    nodes: int


@dataclass(frozen=True)
class AnswerLeftOut(Event):
    """An answer is missing or not accepted; the client is known by its node or its number."""

    kind = "left out"
    level = logging.WARNING
    reason: str
    node: int | None = None
    client: int | None = None
    question: str | None = None
    late: bool = False
    name: str | None = None
    for_good: bool = False
    """Whether it is not asked any more, until the server starts again."""

    def __str__(self) -> str:
        """Return the log line."""
        who = f"client {self.client}" if self.node is None else f"node {self.node}"
        of = f" of '{self.question}'" if self.question else ""
        what = "is left out from now on" if self.for_good else f"is left out{of}"
        return f"{who} {what}: {self.reason}"


@dataclass(frozen=True)
class Limited(Event):
    """A client's update was too large, and was made smaller."""

    text = "client {client}: {what}"
    level = logging.WARNING
    client: int
    what: str
