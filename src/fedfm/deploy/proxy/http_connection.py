"""HTTP on one connection, with a time limit for everything that the other side does."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import h11

from fedfm.deploy.proxy.calls import HEAD, HttpRefusal
from fedfm.deploy.proxy.limits import KIB, Limits

CHUNK = 64 * KIB
"""The most bytes that are read at once."""


@dataclass
class HttpConnection:
    """A connection to a caller."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    limits: Limits
    http: h11.Connection

    @staticmethod
    async def open(
        caller: socket.socket, tls: ssl.SSLContext | None, limits: Limits
    ) -> "HttpConnection":
        """Return the connection on an accepted socket, after the TLS handshake."""
        loop = asyncio.get_running_loop()
        caller.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # small answers go at once
        reader = asyncio.StreamReader(limit=CHUNK)
        protocol = asyncio.StreamReaderProtocol(reader)
        time = {"ssl_handshake_timeout": limits.head} if tls else {}
        transport, _ = await loop.connect_accepted_socket(lambda: protocol, caller, ssl=tls, **time)
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        return HttpConnection(reader, writer, limits, _start_http())

    def close(self) -> None:
        """Close the connection at once."""
        self.writer.transport.abort()

    async def read_head(self, seconds: float) -> h11.Request | None:
        """Return the head of the next request; None if the caller has closed the connection."""
        async with asyncio.timeout(seconds):
            event = await self._read_event()
        return event if isinstance(event, h11.Request) else None

    async def read_body(self, size: int) -> AsyncIterator[bytes]:
        """Yield the body of a request in pieces; refuse one that comes too slowly."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self.limits.time_for(size)
        while True:
            try:
                async with asyncio.timeout_at(min(end, loop.time() + self.limits.pause)):
                    event = await self._read_event()
            except TimeoutError:
                raise HttpRefusal(408) from None
            if not isinstance(event, h11.Data):
                return
            yield bytes(event.data)

    async def send_answer(
        self, status: int, headers: Iterable[tuple[str, str]], body: AsyncIterator[bytes]
    ) -> None:
        """Send an answer in pieces."""
        await self._send(h11.Response(status_code=status, headers=[*headers]))
        async for piece in body:
            await self._send(h11.Data(data=piece))
        await self._send(h11.EndOfMessage())

    async def refuse(self, status: int) -> None:
        """Answer with a status alone, and close the connection if the request is not complete."""
        if self.http.our_state is not h11.SEND_RESPONSE:
            raise h11.LocalProtocolError("the answer has begun already")
        complete = self.http.their_state is h11.DONE
        close = [] if complete else [("connection", "close")]
        headers = [("content-length", "0"), *close]
        await self._send(h11.Response(status_code=status, headers=headers))
        await self._send(h11.EndOfMessage())
        if not complete:
            await self._linger()

    def next_request(self) -> bool:
        """Prepare for another request; return whether one may follow."""
        if self.http.our_state is h11.DONE and self.http.their_state is h11.DONE:
            self.http.start_next_cycle()
            return True
        return False

    async def _linger(self) -> None:
        """Read and forget: a connection that is closed with bytes unread loses the answer."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self.limits.linger):
                while await self.reader.read(CHUNK):
                    pass

    async def _read_event(self) -> Any:
        while (event := self.http.next_event()) is h11.NEED_DATA:
            self.http.receive_data(await self.reader.read(CHUNK))
        return event

    async def _send(self, event: Any) -> None:
        self.writer.write(self.http.send(event) or b"")
        async with asyncio.timeout(self.limits.pause):
            await self.writer.drain()


def _start_http() -> h11.Connection:
    return h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD)
