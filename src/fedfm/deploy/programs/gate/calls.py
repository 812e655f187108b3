"""The calls that the proxy lets through."""

import re
from typing import NamedTuple

import h11

_TARGET = re.compile(r"/v1/fleet/([a-z][a-z-]{0,63})")


class Refused(Exception):
    """A request that is not forwarded, with the HTTP status that says why."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class Call(NamedTuple):
    """The head of a request: which call it is, and the size of its body."""

    name: str
    headers: dict[str, str]
    size: int
    client: str | None = None


def read_call(request: h11.Request) -> Call:
    """Return the call that a request makes; refuse other requests, and bodies of unknown size."""
    match = _TARGET.fullmatch(request.target.decode("ascii", "replace"))
    if match is None:
        raise Refused(404)
    if request.method != b"POST":
        raise Refused(405)
    headers = {key.decode(): value.decode("latin-1") for key, value in request.headers}
    if "content-length" not in headers or "transfer-encoding" in headers:
        raise Refused(411)
    return Call(match[1], headers, int(headers["content-length"]))
