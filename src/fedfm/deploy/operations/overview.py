"""The state of a federation as its events tell it: what status, metrics and the live page show."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import singledispatchmethod
from statistics import median
from typing import Any, Literal

from fedfm.deploy import events
from fedfm.deploy.events import Event

RECENT = 10
"""The number of rounds that the time of a round is taken from, and of refusals that are kept."""
POINTS = 500
"""The most rounds that a curve shows."""
Phase = Literal["starting", "waiting", "training", "finished", "stopped"]
ClientState = Literal["in", "late", "left out", "away", "revoked"]


@dataclass
class ClientOverview:
    """A client that was admitted at some time."""

    client: int
    name: str
    node: int
    key: str | None = None
    state: ClientState = "in"
    reason: str | None = None
    """Why it is not in."""
    answered: int = 0
    """The rounds that it is part of."""
    late: int = 0
    """The questions that it did not answer in time."""
    left_out: int = 0
    """The answers that were missing or not accepted, late ones included."""


@dataclass
class Overview:
    """Everything that an operator wants to know of a federation."""

    phase: Phase = "starting"
    method: str = ""
    round: int = 0
    """The rounds that are done."""
    rounds: int = 0
    wanted: int = 0
    """The clients that the server waits for at the start."""
    secure: bool = False
    config: str = ""
    model: str | None = None
    """The SHA-256 of the last global model."""
    version: str = ""
    started: str = ""
    changed: str = ""
    """The time of the last event."""
    question: str | None = None
    """What clients were asked last."""
    clients: dict[int, ClientOverview] = field(default_factory=dict)
    """The clients that were ever admitted, by number."""
    refused: list[dict[str, Any]] = field(default_factory=list)
    error: dict[str, str] | None = None
    epsilon: float | str | None = None
    epsilon_server: float | str | None = None
    delta: float | None = None
    curve: dict[int, dict[str, Any]] = field(default_factory=dict)
    """What is known of each round, by number."""
    keys: dict[str, str] = field(default_factory=dict)
    """The fingerprints of the public keys that are accepted, by name."""

    def resolve(self, event: Event) -> Event:
        """Return an event with the name and the key of its client, where they are known."""
        if isinstance(event, events.AnswerLeftOut | events.Disconnected):
            known = self._find(event.client, getattr(event, "node", None))
            return replace(event, name=known.name, client=known.client) if known else event
        if isinstance(event, events.Joined):
            return replace(event, key=self.keys.get(event.name))
        return event

    def _find(self, client: int | None, node: int | None = None) -> ClientOverview | None:
        if client is not None:
            return self.clients.get(client)
        return next((each for each in self.clients.values() if each.node == node), None)

    def update(self, event: Event, time: str) -> None:
        """Take an event into account that happened at this time."""
        self.changed = time
        self.apply(event)

    @singledispatchmethod
    def apply(self, event: Event) -> None:
        """Take an event into account; those of other kinds change nothing."""

    @apply.register
    def _(self, event: events.Started) -> None:
        self.phase, self.started, self.error, self.question = "waiting", self.changed, None, None
        self.method, self.rounds, self.wanted = event.method, event.rounds, event.clients
        self.secure, self.config, self.version = event.secure, event.config, event.version
        self.refused = []
        for client in self.clients:
            self._set_state(client, "away", "not connected since the server started")

    @apply.register
    def _(self, event: events.Joined) -> None:
        fresh = ClientOverview(event.client, event.name, event.node)
        known = self.clients.setdefault(event.client, fresh)
        known.name, known.node, known.key = event.name, event.node, event.key
        known.state, known.reason = "in", None

    @apply.register
    def _(self, event: events.NodeRefused) -> None:
        refusal = {"node": str(event.node), "reason": event.reason, "time": self.changed}
        self.refused = [*self.refused, refusal][-RECENT:]

    @apply.register
    def _(self, event: events.Disconnected) -> None:
        self._set_state(event.client, "away", "not connected")

    @apply.register
    def _(self, event: events.Asked) -> None:
        self.question = event.question

    @apply.register
    def _(self, event: events.AnswerLeftOut) -> None:
        if client := self._find(event.client, event.node):
            client.left_out += 1
            client.late += event.late
            self._set_state(client.client, "late" if event.late else "left out", event.reason)

    @apply.register
    def _(self, event: events.RoundBegan) -> None:
        self.phase = "training"

    @apply.register
    def _(self, event: events.RoundEnded) -> None:
        self.round, self.model = event.round, event.model
        self.epsilon, self.epsilon_server = event.epsilon, event.epsilon_server
        self.delta = event.delta
        for client in event.clients:
            self._set_state(client, "in", None)
            if known := self._find(client):
                known.answered += 1
        self._note(event.round, {"clients": len(event.clients), "left_out": len(event.left_out)})
        traffic = ("seconds", "bytes_up", "bytes_down", "handshakes")
        self._note(event.round, {name: getattr(event, name) for name in traffic})

    @apply.register
    def _(self, event: events.Scored) -> None:
        self._note(event.round, event.numbers)

    @apply.register
    def _(self, event: events.Finished) -> None:
        self.phase, self.question = "finished", None

    @apply.register
    def _(self, event: events.Stopped) -> None:
        self.phase, self.error = "stopped", {"text": event.reason, "time": self.changed}

    @apply.register
    def _(self, event: events.KeyAdded) -> None:
        self.keys[event.name] = event.key

    @apply.register
    def _(self, event: events.KeyRemoved) -> None:
        self.keys.pop(event.name, None)
        for client in self.clients.values():
            if client.name == event.name:
                client.state, client.reason = "revoked", "its key is not accepted any more"

    @apply.register
    def _(self, event: events.KeyProblem | events.CertificateProblem | events.RoundDropped) -> None:
        self.error = {"text": str(event), "time": self.changed}

    def _set_state(self, client: int, state: ClientState, reason: str | None) -> None:
        """Change a client's state; a revoked client stays so until it joins again."""
        known = self._find(client)
        if known and known.state != "revoked":
            known.state, known.reason = state, reason

    def _note(self, round: int, facts: Mapping[str, Any]) -> None:
        self.curve.setdefault(round, {"round": round}).update(facts)

    @property
    def seconds_per_round(self) -> float | None:
        """The median time of the last rounds."""
        times = [each["seconds"] for each in self.curve.values() if "seconds" in each]
        return median(times[-RECENT:]) if times else None

    @property
    def traffic(self) -> dict[str, int]:
        """Everything that was sent so far."""
        names = ("bytes_up", "bytes_down", "handshakes")
        return {name: sum(each.get(name, 0) for each in self.curve.values()) for name in names}

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        lists = {
            "clients": [asdict(each) | {"node": str(each.node)} for each in self.clients.values()],
            "curve": thin([each for _, each in sorted(self.curve.items())]),
        }
        means = {"seconds_per_round": self.seconds_per_round, "traffic": self.traffic}
        plain: dict[str, Any] = events.to_plain(asdict(self) | lists | means)
        return plain


def thin(points: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return about `POINTS` of the points, evenly spaced, the last one included."""
    step = -(-len(points) // POINTS)
    return points[::-step][::-1] if step > 1 else points


def replay(entries: list[dict[str, Any]], chain: tuple[str, ...]) -> Overview:
    """Return the overview that the entries of an audit log give; `chain` are no facts of events."""
    overview = Overview()
    for entry in entries:
        facts = {key: value for key, value in entry.items() if key not in chain}
        if event := events.read_event(entry["event"], facts):
            overview.update(event, entry["time"])
    return overview


def now() -> str:
    """Return the time in ISO format."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
