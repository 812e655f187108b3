"""Hosts in network namespaces of a test's own, joined by a bridge; nothing else can reach them."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

TOOLS = ("ip", "unshare", "nsenter")
BRIDGE = "bridge0"


@dataclass(frozen=True)
class Host:
    """A namespace, held by a process that sleeps."""

    address: str
    process: int
    as_user: bool

    @property
    def inside(self) -> tuple[str, ...]:
        """The beginning of a command that runs on this host."""
        user = ("--user", "--preserve-credentials") if self.as_user else ()
        return ("nsenter", "--target", str(self.process), "--net", *user)

    def ip(self, *words: object) -> None:
        """Run `ip` on this host."""
        subprocess.run([*self.inside, "ip", *map(str, words)], check=True)


@contextmanager
def make_host(address: str = "127.0.0.1") -> Iterator[Host]:
    """Make a host with nothing but loopback, which is up; skip where the system does not let us."""
    missing = [tool for tool in TOOLS if not shutil.which(tool)]
    if missing:
        pytest.skip(f"a network of its own needs {', '.join(missing)}")
    as_user = os.geteuid() != 0
    unshare = ["unshare", "--net", *(["--map-root-user"] if as_user else [])]
    tried = subprocess.run([*unshare, "ip", "link"], capture_output=True, text=True)
    if tried.returncode:
        pytest.skip(f"this machine allows no network namespace: {tried.stderr.strip()}")
    holder = subprocess.Popen([*unshare, "sleep", "infinity"])
    try:
        while not _is_elsewhere(holder.pid):
            time.sleep(0.01)
        host = Host(address, holder.pid, as_user)
        host.ip("link", "set", "lo", "up")
        yield host
    finally:
        holder.kill()
        holder.wait()


def _is_elsewhere(process: int) -> bool:
    own, its = (Path("/proc") / str(one) / "ns" / "net" for one in ("self", process))
    return own.readlink() != its.readlink()


def make_bridge(server: Host) -> None:
    """Give the server a bridge, to which other hosts are connected."""
    server.ip("link", "add", BRIDGE, "type", "bridge")
    server.ip("addr", "add", f"{server.address}/24", "dev", BRIDGE)
    server.ip("link", "set", BRIDGE, "up")


def connect(server: Host, host: Host, number: int) -> None:
    """Connect a host to the server's bridge."""
    end = f"host{number}"
    server.ip("link", "add", end, "type", "veth", "peer", "name", "eth0", "netns", host.process)
    server.ip("link", "set", end, "master", BRIDGE, "up")
    host.ip("addr", "add", f"{host.address}/24", "dev", "eth0")
    host.ip("link", "set", "eth0", "up")
