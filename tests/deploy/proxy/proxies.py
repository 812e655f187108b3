"""A proxy on a free port, in front of a superlink that echoes, and callers of all kinds."""

import asyncio
import ssl
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_ssh_private_key,
)

from fedfm.deploy.keys.folders import load_server_keys, make_keys
from fedfm.deploy.keys.renewal import Renewed, make_context
from fedfm.deploy.programs.addresses import LOOPBACK, Address, free_address
from fedfm.deploy.proxy.client_keys import KEY, SIGNATURE, SIGNED, ClientKeysIndex
from fedfm.deploy.proxy.limits import Limits
from fedfm.deploy.proxy.proxy import Proxy, listen

CALL = "/v1/fleet/pull-messages"


def echo(request: httpx.Request) -> httpx.Response:
    """A superlink that answers what it was told."""
    said = {"said": request.headers.get(SIGNATURE, "")}
    return httpx.Response(200, content=request.content, headers=said)


class Superlink(httpx.AsyncBaseTransport):
    """A superlink that reads a whole request and answers it with a stream."""

    def __init__(self, answer: Callable[[httpx.Request], httpx.Response]) -> None:
        self.answer = answer

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Answer a request."""
        await request.aread()
        return to_stream(self.answer(request))


def to_stream(whole: httpx.Response) -> httpx.Response:
    """The same answer, whose content is still to come."""

    async def content() -> AsyncIterator[bytes]:
        yield whole.content

    return httpx.Response(whole.status_code, headers=whole.headers, content=content())


@dataclass
class RunningProxy:
    """A proxy at work."""

    proxy: Proxy
    address: Address
    tls: ssl.SSLContext | None = None

    @asynccontextmanager
    async def caller(self) -> AsyncIterator[httpx.AsyncClient]:
        """A caller that trusts the server's authority."""
        scheme = "https" if self.tls else "http"
        async with httpx.AsyncClient(
            base_url=f"{scheme}://{self.address}", verify=self.tls or False, trust_env=False
        ) as client:
            yield client

    async def post(
        self, path: str = CALL, content: bytes = b"", headers: dict[str, str] | None = None
    ) -> httpx.Response:
        """The answer to one request on a connection of its own."""
        async with self.caller() as client:
            return await client.post(path, content=content, headers=headers)

    async def dial(self, said: bytes = b"", tls: bool = False) -> asyncio.StreamWriter:
        """A connection that says something and then nothing more."""
        host, port = self.address
        _, writer = await asyncio.open_connection(host, port, ssl=self.tls if tls else None)
        writer.write(said)
        return writer

    async def until_open(self, count: int) -> None:
        """Wait until the proxy has that many connections."""
        async with asyncio.timeout(10):
            while len(self.proxy.connections.open) != count:
                await asyncio.sleep(0.01)


@asynccontextmanager
async def run_proxy(
    limits: Limits | None = None,
    transport: httpx.AsyncBaseTransport | None = None,
    keys: Path | None = None,
    message_limit: Path | None = None,
) -> AsyncIterator[RunningProxy]:
    """A proxy; with keys it speaks TLS and knows the clients of that folder."""
    given, address = limits or Limits(), free_address()
    inside, outside = None, None
    if keys:
        inside = Renewed(load_server_keys(keys / "server").files, make_context)
        outside = ssl.create_default_context(cafile=str(keys / "server/ca.pem"))
    superlink = httpx.AsyncClient(transport=transport or Superlink(echo), base_url="http://inside")
    with listen(address) as listener:
        async with superlink:
            client_keys = ClientKeysIndex(keys / "server" if keys else None)
            proxy = Proxy(superlink, client_keys, given, message_limit)
            serving = asyncio.create_task(proxy.serve(listener, inside))
            try:
                yield RunningProxy(proxy, address, outside)
            finally:
                serving.cancel()
                await asyncio.gather(serving, return_exceptions=True)


def new_keys(folder: Path, clients: Iterable[str] = ("a", "b")) -> Path:
    """The keys of a federation."""
    make_keys(folder, [LOOPBACK], [*clients], days=1)
    return folder


def sign(keys: Path, client: str, text: str = "2026-01-01T00:00:00+00:00") -> dict[str, str]:
    """The headers by which a client proves its key."""
    private = load_ssh_private_key((keys / client / f"{client}.key").read_bytes(), None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    public = private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    signature = private.sign(text.encode(), ec.ECDSA(hashes.SHA256()))
    return {
        KEY: b64encode(public).decode(),
        SIGNATURE: b64encode(signature).decode(),
        SIGNED: text,
    }


@contextmanager
def closing(writers: Iterable[asyncio.StreamWriter]) -> Iterator[None]:
    """Close connections at the end."""
    held = list(writers)
    try:
        yield
    finally:
        for writer in held:
            writer.transport.abort()
