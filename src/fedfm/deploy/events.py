"""Events: what happens in a federation, told by the server to whoever listens.

An event is also a line of the log. The audit log, `fedfm status`, the metrics and the live page all
listen to the same events.
"""

import logging
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Event:
    """Something that happened."""

    text: ClassVar[str] = ""
    """The line of the log, with the names of facts in braces."""
    level: ClassVar[int] = logging.INFO
    audited: ClassVar[bool] = True
    """Whether the audit log keeps it."""
    kind: ClassVar[str] = ""
    """The name in files: that of the class, in small letters."""

    def __init_subclass__(cls) -> None:
        """Name the kind of event."""
        cls.kind = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", cls.__name__).lower()

    def __str__(self) -> str:
        """Return the line of the log."""
        return self.text.format(**vars(self))

    def facts(self) -> dict[str, Any]:
        """Return plain values for JSON, without those that are not known."""
        return {k: to_plain(value) for k, value in asdict(self).items() if value is not None}


def to_plain(value: Any) -> Any:
    """Return a value that JSON can hold: infinity and NaN become text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): to_plain(each) for key, each in value.items()}
    return [to_plain(each) for each in value] if isinstance(value, list | tuple) else value


Listener = Callable[[Event], None]
_listeners: list[Listener] = []


def tell(event: Event) -> None:
    """Log an event and hand it to every listener; an error of a listener is the caller's."""
    logger.log(event.level, event)
    for listener in tuple(_listeners):
        listener(event)


@contextmanager
def listen(listener: Listener) -> Iterator[None]:
    """Call `listener` with every event of this process, inside the block."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


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
class Joined(Event):
    """A client has a number and a node."""

    text = "client {client} is '{name}', node {node}"
    client: int
    name: str
    node: int
    key: str | None = None
    """The fingerprint of its public key."""


@dataclass(frozen=True)
class Refused(Event):
    """A node may not take part."""

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
class LeftOut(Event):
    """An answer is missing or not accepted; the client is known by its node or its number."""

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


@dataclass(frozen=True)
class RoundDropped(Event):
    """No sum of a round can be used: the model stays, and the round begins anew."""

    text = "round {round} is dropped ({times} in a row) and begins anew: {reason}"
    level = logging.ERROR
    round: int
    times: int
    reason: str


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
class KeyAdded(Event):
    """A client's public key is accepted from now on."""

    text = "the key of '{name}' is accepted: {key}"
    name: str
    key: str


@dataclass(frozen=True)
class KeyRemoved(Event):
    """A client's public key is not accepted any more."""

    text = "the key of '{name}' is not accepted any more: {key}"
    level = logging.WARNING
    name: str
    key: str


@dataclass(frozen=True)
class KeyProblem(Event):
    """A client's public key could not be read or registered."""

    text = "the key of '{name}' cannot be used: {reason}"
    level = logging.ERROR
    name: str
    reason: str


@dataclass(frozen=True)
class CertificateExpires(Event):
    """A certificate has expired, or soon will."""

    text = "{file} is valid until {expires}: {remedy}"
    level = logging.WARNING
    file: str
    expires: str
    """The time in ISO format."""
    remedy: str


@dataclass(frozen=True)
class CertificateRenewed(Event):
    """The server uses a new certificate, for new connections and signatures."""

    text = "{file} is new and in use: for {names}, valid until {expires}"
    file: str
    names: list[str]
    expires: str
    """The time in ISO format."""
    sha256: str
    """The certificate's fingerprint."""


@dataclass(frozen=True)
class CertificateProblem(Event):
    """A new certificate cannot be used; the one before it stays in use."""

    text = "{file} is not used, and the certificate before it stays in use: {reason}"
    level = logging.ERROR
    file: str
    reason: str


@dataclass(frozen=True)
class LogRepaired(Event):
    """An unfinished last line of the audit log, left by a killed server, was removed."""

    text = "an unfinished line of {bytes} bytes was removed from the audit log"
    level = logging.WARNING
    bytes: int


KINDS: dict[str, type[Event]] = {each.kind: each for each in Event.__subclasses__()}


def read_event(kind: str, facts: Mapping[str, Any]) -> Event | None:
    """Return the event that has these facts; None for a kind that this version does not know."""
    return KINDS[kind](**facts) if kind in KINDS else None
