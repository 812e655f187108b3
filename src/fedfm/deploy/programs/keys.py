"""The folders of a federation's keys: one for the server's machine, one for each client's."""

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedfm.core.errors import not_installed, require
from fedfm.deploy.validation import check_name

SERVER = "server"
"""The folder for the server's machine; every other folder is for a client's."""
ALWAYS = ("localhost", "127.0.0.1")
"""Names that every server certificate includes: the server's own processes use them."""
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.:-]*[A-Za-z0-9])?|::1?")


@dataclass(frozen=True)
class ServerKeys:
    """The server's files: its authority, certificate and key, and the clients' public keys."""

    ca: Path
    certificate: Path
    key: Path
    clients: dict[str, Path]
    """The public keys of the clients that may join, by name."""


@dataclass(frozen=True)
class ClientKeys:
    """A client's files: the server's authority, and the client's private key."""

    ca: Path
    key: Path


def load_server_keys(folder: Path) -> ServerKeys:
    """Return the server's keys in `folder`; refuse a folder that is incomplete."""
    ca, certificate, key = _find_files(folder, ("ca.pem", "server.pem", "server.key"))
    clients = {check_name(path.stem): path for path in sorted(folder.resolve().glob("*.pub"))}
    require(bool(clients), f"--keys {folder}: no public key (NAME.pub): no client could join")
    return ServerKeys(ca, certificate, key, clients)


def load_client_keys(folder: Path, name: str) -> ClientKeys:
    """Return the keys of the client `name` in `folder`; refuse a folder that is incomplete."""
    return ClientKeys(*_find_files(folder, ("ca.pem", f"{name}.key")))


def _find_files(folder: Path, names: Iterable[str]) -> list[Path]:
    paths = [folder.resolve() / name for name in names]
    missing = ", ".join(path.name for path in paths if not path.is_file())
    require(
        not missing,
        f"--keys {folder}: not there: {missing}; `fedfm keys` makes a folder for the server "
        f"(DIR/{SERVER}) and one for each client (DIR/NAME)",
    )
    return paths


def make_keys(folder: Path, hosts: Sequence[str], clients: Sequence[str], days: int) -> None:
    """Write new keys into the new `folder`: a folder for the server, one for each client."""
    _check(folder, hosts, clients)
    try:
        from fedfm.deploy.programs.certificates import make_identity, make_server_files
    except ImportError as problem:
        raise not_installed("making keys needs cryptography", "flower") from problem
    names = list(dict.fromkeys([*hosts, *ALWAYS]))
    files = make_server_files(names, days)
    for name, content in files.items():
        _write(folder / SERVER / name, content)
    for name in clients:
        private, public = make_identity(name)
        _write(folder / SERVER / f"{name}.pub", public)
        _write(folder / name / "ca.pem", files["ca.pem"])
        _write(folder / name / f"{name}.key", private)


def _check(folder: Path, hosts: Sequence[str], clients: Sequence[str]) -> None:
    require(
        not folder.exists(), f"{folder} exists: keys are never overwritten; choose another folder"
    )
    for host in hosts:
        require(_HOST.fullmatch(host) is not None, f"--server {host}: not a host name or address")
    for name in clients:
        require(check_name(name) != SERVER, f"a client cannot have the name '{SERVER}'")
    require(len(set(clients)) == len(clients), "two clients have the same name")


def _write(path: Path, content: bytes) -> None:
    """Write a new file that only its owner can read, in a folder that only its owner can open."""
    path.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
        file.write(content)
