"""A proxy in front of a superlink that forwards only the calls that are meant for clients.

Flower 1.41 serves three interfaces on one port: one for clients (Fleet), one that starts runs and
admits clients (Control), and one for its own processes (Runtime). Control and Runtime do not
authenticate callers. So the superlink listens on loopback only. The proxy terminates TLS with the
superlink's certificate and forwards the calls of Fleet.

    python -m fedfm.deploy.programs.proxy HOST:PORT SUPERLINK [ca.pem server.pem server.key]
"""

import re
import ssl
import sys

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from fedfm.deploy.programs.addresses import Address

LARGEST = 64 * 2**20
"""The largest request in bytes; Flower splits arrays into pieces of 5 MiB."""
CONNECTIONS = 1000
PATIENCE = 60.0
"""Seconds within which the superlink must answer."""
_CALL = re.compile(r"[a-z][a-z-]{0,63}")
_HOP_HEADERS = frozenset(
    {"host", "content-length", "transfer-encoding", "connection", "accept-encoding"}
)
"""Headers of one connection, which are not forwarded."""


def make_proxy(superlink: httpx.AsyncClient) -> Starlette:
    """Return the proxy as a web application; `superlink` is a client with its base URL."""

    async def forward(request: Request) -> Response:
        call = request.path_params["call"]
        if not _CALL.fullmatch(call):
            return Response(status_code=404)
        body = await _read_body(request)
        if body is None:
            return Response(status_code=413)
        return await _forward(superlink, call, body, request)

    return Starlette(routes=[Route("/v1/fleet/{call}", forward, methods=["POST"])])


async def _read_body(request: Request) -> bytes | None:
    """Return the request's body; None if it is too large."""
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > LARGEST:
            return None
    return bytes(body)


async def _forward(
    superlink: httpx.AsyncClient, call: str, body: bytes, request: Request
) -> Response:
    headers = {key: value for key, value in request.headers.items() if key not in _HOP_HEADERS}
    try:
        answer = await superlink.post(f"/v1/fleet/{call}", content=body, headers=headers)
    except httpx.TransportError:
        return Response(status_code=503)
    kept = {key: value for key, value in answer.headers.items() if key not in _HOP_HEADERS}
    return Response(answer.content, answer.status_code, kept)


def main(outside: str, inside: str, *tls: str) -> None:
    """Serve until a signal ends the process."""
    ca, certificate, key = tls or (None, None, None)
    verify = ssl.create_default_context(cafile=ca) if ca else True
    superlink = httpx.AsyncClient(
        base_url=f"{'https' if ca else 'http'}://{inside}",
        verify=verify,
        timeout=PATIENCE,
        trust_env=False,
        headers={"accept-encoding": "identity"},
    )
    host, port = Address.parse(outside)
    uvicorn.run(
        make_proxy(superlink),
        host=host,
        port=port,
        ssl_certfile=certificate,
        ssl_keyfile=key,
        log_level="warning",
        server_header=False,
        limit_concurrency=CONNECTIONS,
        timeout_keep_alive=30,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
