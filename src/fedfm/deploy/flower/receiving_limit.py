"""Limits for what a client receives: a message is refused before its bytes are read.

Flower announces the parts of a message but not their sizes; HTTP announces the size of each part.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

MIB = 2**20
SMALL = 4 * MIB
"""The bytes of an answer that holds no part of a message."""
PARTS = 1024
"""The parts that a message may have beside one for each mebibyte of its limit."""
PART = "/pull-object"
"""How the path of a request for a part ends."""


class Oversized(Exception):
    """The server sends more than this client accepts."""


class ReceivingLimit:
    """Counts the bytes of the message that a client fetches; `limit` is the most."""

    def __init__(self, limit: int) -> None:
        self.limit, self.left = limit, 0
        self.lock = threading.Lock()

    @contextmanager
    def message(self, parts: int) -> Iterator[None]:
        """Accept one message inside the block; refuse one of too many parts."""
        most = PARTS + self.limit // MIB
        if parts > most:
            raise Oversized(f"it has {parts:,} parts; at most {most:,} are accepted")
        self.left = self.limit + self.limit // 16 + MIB  # with Flower's own bytes
        try:
            yield
        finally:
            self.left = 0

    def check(self, response: httpx.Response) -> None:
        """Refuse an answer by its head, before its body is read: a hook of an httpx client."""
        size, packed = response.headers.get("content-length"), "content-encoding"
        if size is None or not size.isdecimal() or packed in response.headers:
            raise Oversized("the server does not say how large its answer is")
        if not response.request.url.path.endswith(PART):
            if int(size) > SMALL:
                raise Oversized(f"an answer of {int(size):,} bytes that is no part of a message")
            return
        with self.lock:
            self.left -= int(size)
            if self.left < 0:
                raise Oversized(f"it is larger than message_limit, {self.limit:,} bytes")
