"""The limits of the proxy: connections, bytes and seconds."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

KIB, MIB = 2**10, 2**20
MESSAGE_LIMIT = "message_limit"
"""The file in a run's folder in which the server says how large an answer may be, in bytes."""


@dataclass(frozen=True)
class Limits:
    """What callers may use.

    A client is a caller with a registered key. A stranger is everybody else, also a client before
    its first request. Without keys every caller counts as a client.
    """

    connections: int = 512
    """Open connections in total; a superlink, a proxy and their logs fit into 1,024 files."""
    address: int = 128
    """Open connections of one address; clients behind one address share them."""
    client: int = 16
    """Open connections of one client; a node uses about four."""
    requests: int = 256
    """Requests that the superlink works on at once."""
    stranger: int = 64 * KIB
    """The bytes of a stranger's request; it needs a few hundred."""
    request: int = 16 * MIB
    """The bytes of a client's request; Flower splits arrays into pieces of 5 MiB."""
    per_client: int = 64 * MIB
    """The bytes of one client's requests that are under way."""
    total: int = 256 * MIB
    """The bytes of all requests that are under way."""
    message: int = 2**40
    """The bytes of one message of a client, in all its requests; the server may say less."""
    early: int = 64 * MIB
    """The same, before the server has said how large an answer is."""
    head: float = 10.0
    """Seconds for a TLS handshake, and for the head of a request."""
    idle: float = 75.0
    """Seconds that a client's connection may be unused; a stranger's has only `head`."""
    pause: float = 15.0
    """Seconds between two pieces of a request or of an answer."""
    rate: int = 32 * KIB
    """The bytes per second that a request must reach after `pause`."""
    linger: float = 2.0
    """Seconds in which the rest of a refused request is read, so that the answer is read, too."""
    wait: float = 20.0
    """Seconds that a request waits until there is room for its bytes."""
    patience: float = 60.0
    """Seconds within which the superlink must answer."""

    def time_for(self, size: int) -> float:
        """Return the seconds within which a request of this size must be complete."""
        return self.pause + size / self.rate


class RequestMemory:
    """The bytes of clients' requests that are under way."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.held: Counter[str] = Counter()

    @asynccontextmanager
    async def reserve(self, client: str, size: int) -> AsyncIterator[None]:
        """Wait until there is room for a request, and keep it inside the block."""
        async with asyncio.timeout(self.limits.wait):
            while not self._fits(client, size):
                await asyncio.sleep(0.05)
        self.held[client] += size
        try:
            yield
        finally:
            self.held[client] -= size
            self.held += Counter()  # forget clients without requests

    def _fits(self, client: str, size: int) -> bool:
        of_client, total = self.held[client] + size, self.held.total() + size
        return of_client <= self.limits.per_client and total <= self.limits.total


class MessageSizes:
    """The bytes of the message that each client is sending.

    The server writes the size of the largest answer that it expects into `file`. Until it does,
    answers are small.
    """

    def __init__(self, limits: Limits, file: Path | None) -> None:
        self.limits, self.file = limits, file
        self.sent: Counter[str] = Counter()

    @property
    def limit(self) -> int:
        """The bytes of one message, with Flower's own and a piece that is sent again."""
        most = self.limits.message
        if self.file:
            try:
                most = min(most, int(self.file.read_text()))
            except (OSError, ValueError):
                most = self.limits.early
        return most + most // 16 + MIB

    def begin(self, client: str) -> None:
        """Begin the next message."""
        self.sent[client] = 0

    def allows(self, client: str, size: int) -> bool:
        """Count a piece of the message; return whether the message is within the limit."""
        self.sent[client] += size
        return self.sent[client] <= self.limit
