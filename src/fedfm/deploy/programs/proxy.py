"""A gate in front of a superlink: from outside, clients reach what is meant for them, no more.

Flower 1.41 serves three interfaces on one port: the clients' (Fleet), the one that starts runs
and admits clients (Control), and the one its own processes use (Runtime). The last two ask
nobody who they are. So the superlink listens on this machine's loopback only, and the gate,
which ends TLS with the same certificate, passes on the calls of the first.

    python -m fedfm.deploy.programs.proxy HOST:PORT SUPERLINK [ca.pem server.pem server.key]
"""

import re
import ssl
import sys
from typing import TYPE_CHECKING

from fedfm.deploy.programs.addresses import Address

if TYPE_CHECKING:
    from httpx import AsyncClient
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

LARGEST = 64 * 2**20
"""Bytes of a request; Flower cuts arrays into pieces of 5 MiB."""
CONNECTIONS = 1000
PATIENCE = 60.0
"""Seconds for an answer of the superlink."""
_CALL = re.compile(r"[a-z][a-z-]{0,63}")
_OWN = frozenset({"host", "content-length", "transfer-encoding", "connection", "accept-encoding"})
"""Headers that belong to one connection."""


def make_gate(superlink: "AsyncClient") -> "Starlette":
    """The gate as a web application; `superlink` knows the address behind it."""
    from starlette.applications import Starlette
    from starlette.responses import Response
    from starlette.routing import Route

    async def pass_on(request: "Request") -> "Response":
        call = request.path_params["call"]
        if not _CALL.fullmatch(call):
            return Response(status_code=404)
        body = await _body(request)
        if body is None:
            return Response(status_code=413)
        return await _answer(superlink, call, body, request)

    return Starlette(routes=[Route("/v1/fleet/{call}", pass_on, methods=["POST"])])


async def _body(request: "Request") -> bytes | None:
    """The request's body, or None where it is too large."""
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > LARGEST:
            return None
    return bytes(body)


async def _answer(
    superlink: "AsyncClient", call: str, body: bytes, request: "Request"
) -> "Response":
    import httpx
    from starlette.responses import Response

    headers = {key: value for key, value in request.headers.items() if key not in _OWN}
    try:
        answer = await superlink.post(f"/v1/fleet/{call}", content=body, headers=headers)
    except httpx.TransportError:
        return Response(status_code=503)
    kept = {key: value for key, value in answer.headers.items() if key not in _OWN}
    return Response(answer.content, answer.status_code, kept)


def main(outside: str, inside: str, *tls: str) -> None:
    """Serve until told to stop."""
    import httpx
    import uvicorn

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
        make_gate(superlink),
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
