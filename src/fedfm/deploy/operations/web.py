"""The server's web pages for operators: /metrics, /health, /status.json, and a live page at /."""

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import resources
from typing import Any, Protocol

import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from fedfm.core.errors import UserError
from fedfm.deploy.operations.prometheus import write_metrics
from fedfm.deploy.programs.addresses import Address

logger = logging.getLogger(__name__)
POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
FILES = {
    "/": ("text/html", ("deploy/operations/page.html",)),
    "/page.css": ("text/css", ("report/html/style.css", "deploy/operations/page.css")),
    "/page.js": ("text/javascript", ("deploy/operations/page.js",)),
}
"""The page's files by path: type and sources; its look is the report's."""
CONNECTIONS = 50
"""Open connections; the files of the server's process are needed for its run."""


class WebConnection(H11Protocol):
    """One connection; over the limit the oldest makes way, so that nobody can hold the port."""

    def connection_made(self, transport: Any) -> None:
        """Accept a connection."""
        super().connection_made(transport)
        self.began = time.monotonic()
        if len(self.connections) > CONNECTIONS:
            oldest = min(self.connections, key=lambda each: each.began)  # type: ignore[union-attr]
            self.connections.discard(oldest)
            oldest.transport.abort()


class StatusProvider(Protocol):
    """Where the pages get their content."""

    def status(self) -> dict[str, Any]:
        """Return the server's status."""
        ...


def make_app(source: StatusProvider, address: Address) -> Starlette:
    """Return the web application.

    On a loopback address it answers only requests for this machine, so that a page of the web
    cannot read it under another name (DNS rebinding).
    """

    def metrics(request: Request) -> Response:
        return _answer(write_metrics(source.status), CONTENT_TYPE_LATEST)

    def health(request: Request) -> Response:
        healthy = source.status()["healthy"]
        return _answer(b"ok\n" if healthy else b"no progress\n", "text/plain", healthy)

    def status(request: Request) -> Response:
        return JSONResponse(source.status(), headers=HEADERS)

    pages = {"/metrics": metrics, "/health": health, "/status.json": status}
    routes = [Route(path, page) for path, page in pages.items()]
    routes += [Route(path, _serve_file(path)) for path in FILES]
    hosts = ["127.0.0.1", "localhost", "[::1]", address.host] if address.is_loopback else ["*"]
    return Starlette(
        routes=routes, middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=hosts)]
    )


def _answer(content: bytes, kind: str, good: bool = True) -> Response:
    return Response(content, 200 if good else 503, HEADERS, kind)


def _serve_file(path: str) -> Callable[[Request], Response]:
    def serve(request: Request) -> Response:
        return _answer(read_page(path), FILES[path][0])

    return serve


@cache
def read_page(path: str) -> bytes:
    """Return a file of the live page."""
    package = resources.files("fedfm")
    return b"\n".join((package / name).read_bytes() for name in FILES[path][1])


@contextmanager
def serve_web(source: StatusProvider, address: Address) -> Iterator[None]:
    """Serve the pages at an address, in a thread of its own, inside the block."""
    listener = _bind(address)
    warn_of_network(address)
    config = uvicorn.Config(
        make_app(source, address),
        log_config=None,
        ws="none",
        lifespan="off",
        log_level="error",
        access_log=False,
        server_header=False,
        http=WebConnection,
        backlog=CONNECTIONS,  # so many are accepted before others are closed
        timeout_keep_alive=5,
        timeout_graceful_shutdown=2,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listener],), name="fedfm-web", daemon=True)
    thread.start()
    logger.info("metrics and a live page: http://%s/", address)
    try:
        yield
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


def warn_of_network(address: Address) -> None:
    """Warn of an address that other machines may reach."""
    if not address.is_loopback:
        logger.warning(
            "--metrics %s: whoever can reach this address sees the clients' names and the scores, "
            "without a password; use a loopback address and a proxy that asks for one",
            address,
        )


def _bind(address: Address) -> socket.socket:
    """Return a socket that listens at an address."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        return socket.create_server(tuple(address), family=family)
    except OSError as problem:
        reason = os.strerror(problem.errno or 0)
        raise UserError(
            f"--metrics {address}: cannot listen there ({reason}); choose another port, or an "
            "address of this machine"
        ) from problem
