"""A server's certificate that is renewed while the server runs.

Every process of a server that uses the certificate looks at its files and takes a new one into
use: the proxy and the superlink for new connections, the server for the next signature.
"""

import logging
import ssl
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from fedfm.deploy.keys.certificates import check_server_files
from fedfm.deploy.validation import to_one_line

logger = logging.getLogger(__name__)
T = TypeVar("T")
LOOK = 1.0
"""Seconds between two looks at the files."""
KEPT = "%s is not used, and the certificate before it stays in use: %s"
Files = tuple[bytes | None, ...]


def warn(certificate: Path, reason: str) -> None:
    """Log why a new certificate is not used."""
    logger.warning(KEPT, certificate, reason)


class Renewed(Generic[T]):
    """What `make` returns for the certificate that is in use.

    Calling it looks at the files, at most once a second. A new certificate is used if it fits its
    key, is valid now, and is of the authority that clients know. Until then the old one stays, and
    `refuse` is told once why, unless the files are still being written.
    """

    def __init__(
        self,
        files: Sequence[Path | str],
        make: Callable[[Path, Path], T],
        refuse: Callable[[Path, str], None] = warn,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        ca, self.certificate, self.key = map(Path, files)
        self.authorities, self.make, self.refuse = ca.read_bytes(), make, refuse
        self.clock, self.looked = clock, clock()
        self.used = self.seen = self._read()
        self.refused = ""
        self.value = make(self.certificate, self.key)

    def __call__(self) -> T:
        """Return the newest value."""
        if self.clock() - self.looked >= LOOK:
            self.looked = self.clock()
            self._look()
        return self.value

    def _read(self) -> Files:
        return tuple(_read_file(path) for path in (self.certificate, self.key))

    def _look(self) -> None:
        """Take a new certificate into use, or say why not."""
        there, before = self._read(), self.seen
        self.seen = there
        if there == self.used:
            self.refused = ""
            return
        try:
            check_server_files(self.certificate, self.key, self.authorities)
            self.value = self.make(self.certificate, self.key)
        except (OSError, ValueError) as problem:
            self._refuse_once(to_one_line(problem), is_written=there == before)
        else:
            self.used, self.refused = there, ""

    def _refuse_once(self, reason: str, is_written: bool) -> None:
        if is_written and reason != self.refused:
            self.refused = reason
            self.refuse(self.certificate, reason)


def _read_file(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def make_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """Return the TLS context of a server."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    return context


def follow(context: ssl.SSLContext, newest: Callable[[], ssl.SSLContext]) -> None:
    """Let each new connection of a context have the certificate of the `newest` one."""

    def choose(connection: ssl.SSLObject, name: str | None, first: ssl.SSLContext) -> None:
        connection.context = newest()

    context.sni_callback = choose  # it is called for connections without a name, too
