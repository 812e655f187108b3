"""A proxy in front of a superlink that forwards only the calls that are meant for clients.

Flower serves three interfaces on one port: one for clients (Fleet), one that starts runs and admits
clients (Control), and one for its own processes (Runtime). So the superlink listens on loopback
only. The proxy terminates TLS with the superlink's certificate and forwards the calls of Fleet, as
far as its limits allow. It holds no request in memory: the bytes pass through.

    python -m fedfm.deploy.proxy.proxy HOST:PORT SUPERLINK RUN [ca.pem server.pem server.key]

The folder of server.pem has the clients' public keys (NAME.pub). The server writes the size of the
largest message that it expects into the file message_limit of the run's folder, RUN.
"""

import asyncio
import gc
import logging
import signal
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path

import h11
import httpx

from fedfm.deploy.keys.renewal import Renewed, make_context
from fedfm.deploy.programs.addresses import Address
from fedfm.deploy.proxy.calls import Call, HttpRefusal, read_call
from fedfm.deploy.proxy.client_keys import ClientKeysIndex
from fedfm.deploy.proxy.connections import ConnectionTable, ProxyConnection
from fedfm.deploy.proxy.http_connection import HttpConnection
from fedfm.deploy.proxy.limits import MESSAGE_LIMIT, Limits, MessageSizes, RequestMemory

logger = logging.getLogger(__name__)
Tls = Callable[[], ssl.SSLContext]
_HOP_HEADERS = frozenset({"transfer-encoding", "connection"})
"""Headers of one connection, which are not sent back."""
SWEEP = 64
"""After so many connections their memory is collected: asyncio leaves each in a cycle."""
_GONE = (OSError, TimeoutError, h11.ProtocolError, ssl.SSLError)
"""What a caller that breaks off, dawdles or does not speak HTTP causes."""


class Proxy:
    """Serves callers; `superlink` is a client with the superlink's base URL."""

    def __init__(
        self,
        superlink: httpx.AsyncClient,
        client_keys: ClientKeysIndex,
        limits: Limits,
        message_limit: Path | None = None,
    ) -> None:
        self.superlink, self.client_keys, self.limits = superlink, client_keys, limits
        self.connections, self.memory = ConnectionTable(limits), RequestMemory(limits)
        self.message_sizes = MessageSizes(limits, message_limit)
        self.working = asyncio.Semaphore(limits.requests)
        self.ended = 0

    async def serve(self, listener: socket.socket, tls: Tls | None = None) -> None:
        """Accept connections until the task is cancelled; `tls` returns the context to use."""
        loop, tasks = asyncio.get_running_loop(), set[asyncio.Task[None]]()
        try:
            while True:
                try:
                    caller, peer = await loop.sock_accept(listener)
                except OSError:  # no files left, or a caller that is gone already
                    await asyncio.sleep(0.05)
                    continue
                task = asyncio.create_task(self._welcome(caller, str(peer[0]), tls))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
        finally:
            for task in tasks:
                task.cancel()

    async def _welcome(self, caller: socket.socket, address: str, tls: Tls | None) -> None:
        """Serve one connection until either side ends it."""
        task = asyncio.current_task()
        assert task is not None
        connection, http = ProxyConnection(address, task), None
        try:
            if self.connections.enter(connection):
                http = await HttpConnection.open(caller, tls and tls(), self.limits)
                while await self._answer(http, connection):
                    pass
        except _GONE:
            pass
        except Exception:  # the other connections go on
            logger.exception("a request failed")
        finally:
            self.connections.leave(connection)
            http.close() if http else caller.close()
            self._sweep()

    def _sweep(self) -> None:
        self.ended += 1
        if self.ended % SWEEP == 0:
            gc.collect()

    async def _answer(self, http: HttpConnection, connection: ProxyConnection) -> bool:
        """Answer one request; return whether another may follow."""
        known = connection.client is not None
        request = await http.read_head(self.limits.idle if known else self.limits.head)
        if request is None:
            return False
        try:
            await self._forward(http, self._check(read_call(request), connection))
        except HttpRefusal as refused:
            await http.refuse(refused.status)
        return http.next_request()

    def _check(self, call: Call, connection: ProxyConnection) -> Call:
        """Return the call with the client that makes it; refuse one that is too large."""
        client = self.client_keys.recognise(call.headers, connection.address)
        if client:
            self.connections.recognise(connection, client)
        if call.size > (self.limits.request if client else self.limits.stranger):
            raise HttpRefusal(413)
        if (
            client
            and call.name == "push-object"
            and not self.message_sizes.allows(client, call.size)
        ):
            raise HttpRefusal(413)
        return call._replace(client=client)

    async def _forward(self, http: HttpConnection, call: Call) -> None:
        """Send a request on, and its answer back."""
        if call.client is None:  # a stranger keeps the superlink waiting at no time
            body = [piece async for piece in http.read_body(call.size)]
            await self._exchange(http, call, _repeat(body))
            return
        try:
            async with self.memory.reserve(call.client, call.size):
                await self._exchange(http, call, http.read_body(call.size))
        except TimeoutError:
            raise HttpRefusal(503) from None

    async def _exchange(self, http: HttpConnection, call: Call, body: AsyncIterator[bytes]) -> None:
        request = self.superlink.build_request(
            "POST", f"/v1/fleet/{call.name}", content=body, headers=call.headers
        )
        async with self.working:
            try:
                answer = await self.superlink.send(request, stream=True)
            except httpx.TransportError:
                raise HttpRefusal(503) from None
            try:
                kept = [
                    (key, value)
                    for key, value in answer.headers.multi_items()
                    if key not in _HOP_HEADERS
                ]
                if call.client and call.name == "push-messages" and answer.is_success:
                    self.message_sizes.begin(call.client)
                await http.send_answer(answer.status_code, kept, answer.aiter_raw())
            finally:
                await answer.aclose()


async def _repeat(pieces: list[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


def listen(address: Address) -> socket.socket:
    """Return a socket that listens at an address."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    listener = socket.create_server((address.host, address.port), family=family, backlog=1024)
    listener.setblocking(False)
    return listener


def connect(inside: str, ca: str | None, limits: Limits) -> httpx.AsyncClient:
    """Return a client of the superlink."""
    return httpx.AsyncClient(
        base_url=f"{'https' if ca else 'http'}://{inside}",
        verify=ssl.create_default_context(cafile=ca) if ca else True,
        timeout=limits.patience,
        limits=httpx.Limits(max_connections=limits.requests),
        trust_env=False,
        headers={"accept-encoding": "identity"},
    )


async def run(outside: str, inside: str, out: str, *tls: str) -> None:
    """Serve until a signal ends the process."""
    ca, certificate, _ = tls or (None, None, None)
    limits, context = Limits(), Renewed(tls, make_context) if tls else None
    folder = Path(certificate).parent if certificate else None
    gc.freeze()
    with listen(Address.parse(outside)) as listener:
        async with connect(inside, ca, limits) as superlink:
            proxy = Proxy(superlink, ClientKeysIndex(folder), limits, Path(out) / MESSAGE_LIMIT)
            serving = asyncio.create_task(proxy.serve(listener, context))
            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(number, serving.cancel)
            with suppress(asyncio.CancelledError):
                await serving


if __name__ == "__main__":
    asyncio.run(run(*sys.argv[1:]))
