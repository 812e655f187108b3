"""The calls that the proxy lets through."""

import re
from typing import NamedTuple

import h11

from fedfm.deploy.proxy.limits import KIB

HEAD = 16 * KIB
"""The largest head of a request in bytes."""
_TARGET = re.compile(r"/v1/fleet/([a-z][a-z-]{0,63})")
_HEADER = re.compile(r"flwr-[a-z0-9-]+|content-(type|length)|accept|user-agent")
"""The headers that the superlink needs; others are not forwarded."""


class HttpRefusal(Exception):
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
    """Return the call that a request makes; refuse others, and bodies of unknown size."""
    if sum(len(key) + len(value) + 4 for key, value in request.headers) > HEAD:
        raise HttpRefusal(431)
    match = _TARGET.fullmatch(request.target.decode("ascii", "replace"))
    if match is None:
        raise HttpRefusal(404)
    if request.method != b"POST":
        raise HttpRefusal(405)
    given = {key.decode(): value for key, value in request.headers}
    if "content-length" not in given or "transfer-encoding" in given:
        raise HttpRefusal(411)
    try:
        headers = {key: given[key].decode("ascii") for key in given if _HEADER.fullmatch(key)}
    except UnicodeDecodeError:
        raise HttpRefusal(400) from None
    return Call(match[1], headers, int(headers["content-length"]))
