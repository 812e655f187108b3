"""Who is connected: over a limit, the oldest connection of a stranger makes way."""

import asyncio
import logging
import time
from collections import Counter
from dataclasses import dataclass

from fedfm.deploy.proxy.limits import Limits

logger = logging.getLogger(__name__)
QUIET = 60.0
"""Seconds in which a message is logged once."""


@dataclass(eq=False)
class ProxyConnection:
    """One connection; the task serves it, and ends if it is cancelled."""

    address: str
    task: "asyncio.Task[None]"
    client: str | None = None
    """The client that has proved its key here; None: a stranger."""


class ConnectionTable:
    """The open connections, oldest first.

    Strangers can open connections without end, and each of theirs may be a client's first. So a
    new connection is let in, and the oldest stranger is cut: a client needs a fraction of a second
    to prove its key, and is not cut any more afterwards.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.open: dict[ProxyConnection, None] = {}
        self.logged: dict[str, float] = {}

    def enter(self, connection: ProxyConnection) -> bool:
        """Let a connection in, if there is room or somebody makes way."""
        same = [other for other in self.open if other.address == connection.address]
        if len(same) >= self.limits.address and not self._cut_stranger(same):
            self._log(f"{connection.address} has {len(same)} connections: no more are accepted")
            return False
        if len(self.open) >= self.limits.connections and not self._cut_stranger(self._crowd()):
            self._log(f"there are {len(self.open)} connections: no more are accepted")
            return False
        self.open[connection] = None
        return True

    def recognise(self, connection: ProxyConnection, client: str) -> None:
        """Remember whose connection this is; its oldest one makes way if it has too many."""
        if connection.client is None:
            connection.client = client
            of_client = [other for other in self.open if other.client == client]
            if len(of_client) > self.limits.client:
                self._log(f"client '{client}' has {len(of_client)} connections: the oldest is cut")
                self._cut(of_client[0])

    def leave(self, connection: ProxyConnection) -> None:
        """Forget a connection."""
        self.open.pop(connection, None)

    def _crowd(self) -> list[ProxyConnection]:
        """Return the connections of the address that has the most strangers."""
        strangers = Counter(each.address for each in self.open if each.client is None)
        most = strangers.most_common(1)
        return [each for each in self.open if most and each.address == most[0][0]]

    def _cut_stranger(self, connections: list[ProxyConnection]) -> bool:
        oldest = next((each for each in connections if each.client is None), None)
        if oldest is None:
            return False
        self._log(f"too many connections from {oldest.address}: the oldest unproved one is cut")
        self._cut(oldest)
        return True

    def _cut(self, connection: ProxyConnection) -> None:
        self.leave(connection)
        connection.task.cancel()

    def _log(self, text: str) -> None:
        now = time.monotonic()
        self.logged = {line: at for line, at in self.logged.items() if now - at < QUIET}
        if text not in self.logged:
            self.logged[text] = now
            logger.warning("%s", text)
