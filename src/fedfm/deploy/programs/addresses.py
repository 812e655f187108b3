"""Hosts and ports: whether they are loopback, free, or listened to."""

import ipaddress
import socket
import subprocess
import time
from pathlib import Path
from typing import NamedTuple, Self

from fedfm.core.errors import UserError, require
from fedfm.deploy.programs.processes import FlowerError, last_lines

LOOPBACK = "127.0.0.1"
PATIENCE = 120.0
"""Seconds within which a program must listen."""


class Address(NamedTuple):
    """A host name or IP address, and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        """Return HOST:PORT, as programs accept it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read HOST:PORT, with an IPv6 address in brackets."""
        host, _, port = text.rpartition(":")
        good = host and port.isdecimal() and 0 < int(port) < 65536
        require(bool(good), f"'{text}' is not HOST:PORT, for example 192.0.2.7:9092")
        return cls(host.removeprefix("[").removesuffix("]"), int(port))

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


def free_address() -> Address:
    """Return a free port on this machine's loopback."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return Address(LOOPBACK, probe.getsockname()[1])


OTHER_PORT = (
    "choose another --port, or give --host an address of this machine (0.0.0.0: all of them)"
)


def require_free(address: Address, remedy: str = OTHER_PORT) -> None:
    """Raise a `UserError` if no program can listen at `address`."""
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
    except OSError as problem:
        raise UserError(f"cannot listen at {address}: {problem.strerror}; {remedy}") from problem


def wait_until_listening(process: subprocess.Popen[bytes], address: Address, log: Path) -> None:
    """Wait until the `process` listens at `address`; raise `FlowerError` if it fails."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            socket.create_connection(address, timeout=1).close()
            return
        except OSError as problem:
            if process.poll() is not None or time.monotonic() > end:
                raise FlowerError(f"{log.stem} did not start:\n{last_lines(log)}") from problem
            time.sleep(0.1)
