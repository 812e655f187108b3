"""Events: what happens in a federation, told by the server to whoever listens.

An event is also a line of the log. The audit log, `fedfm status`, the metrics and the live page all
listen to the same events.
"""

from collections.abc import Mapping
from typing import Any

from fedfm.deploy.events.base import Event, emit, listen, to_plain
from fedfm.deploy.events.clients import (
    AnswerLeftOut,
    Asked,
    Disconnected,
    Joined,
    Limited,
    NodeRefused,
)
from fedfm.deploy.events.keys import (
    CertificateExpires,
    CertificateProblem,
    CertificateRenewed,
    KeyAdded,
    KeyProblem,
    KeyRemoved,
)
from fedfm.deploy.events.rounds import RoundBegan, RoundDropped, RoundEnded, SumRepeated
from fedfm.deploy.events.run import Finished, LogRepaired, Scored, Started, Stopped

__all__ = [
    "KINDS",
    "AnswerLeftOut",
    "Asked",
    "CertificateExpires",
    "CertificateProblem",
    "CertificateRenewed",
    "Disconnected",
    "Event",
    "Finished",
    "Joined",
    "KeyAdded",
    "KeyProblem",
    "KeyRemoved",
    "Limited",
    "LogRepaired",
    "NodeRefused",
    "RoundBegan",
    "RoundDropped",
    "RoundEnded",
    "Scored",
    "Started",
    "Stopped",
    "SumRepeated",
    "emit",
    "listen",
    "read_event",
    "to_plain",
]

KINDS: dict[str, type[Event]] = {each.kind: each for each in Event.__subclasses__()}


def read_event(kind: str, facts: Mapping[str, Any]) -> Event | None:
    """Return the event that has these facts; None for a kind that this version does not know."""
    return KINDS[kind](**facts) if kind in KINDS else None
