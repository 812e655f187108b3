"""A federation's keys in folders: one for the server's machine, one for each client's."""

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from fedfm.core.errors import UserError, require
from fedfm.deploy.programs.certificates import (
    make_identity,
    make_server_secrets,
    require_cryptography,
)
from fedfm.deploy.validation import ClientName

SERVER = "server"
"""The folder for the server's machine; every other one is a client's."""
ALWAYS = ("localhost", "127.0.0.1")
"""The server's certificate is for these too: its own processes talk to each other over them."""
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.:-]*[A-Za-z0-9])?|::1?")


@dataclass(frozen=True)
class ServerKeys:
    """What the server has: its certificate and key, who signed it, and whom it lets in."""

    ca: Path
    certificate: Path
    key: Path
    clients: dict[str, Path]
    """The public keys of those who may join, by name."""


@dataclass(frozen=True)
class ClientKeys:
    """What a client has: whom it trusts, and its own identity."""

    ca: Path
    key: Path


def server_keys(folder: Path) -> ServerKeys:
    """The server's keys in `folder`, all there."""
    ca, certificate, key = _there(folder, ("ca.pem", "server.pem", "server.key"))
    clients = {_checked(path.stem): path for path in sorted(folder.resolve().glob("*.pub"))}
    require(bool(clients), f"--keys {folder}: nobody could join, there is no public key (NAME.pub)")
    return ServerKeys(ca, certificate, key, clients)


def client_keys(folder: Path, name: str) -> ClientKeys:
    """The keys of the client `name` in `folder`, all there."""
    return ClientKeys(*_there(folder, ("ca.pem", f"{name}.key")))


def _there(folder: Path, names: Iterable[str]) -> list[Path]:
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
    require_cryptography()
    names = list(dict.fromkeys([*hosts, *ALWAYS]))
    server, secrets = folder / SERVER, make_server_secrets(names, days)
    _write(server / "ca.pem", secrets.authority)
    _write(server / "server.pem", secrets.certificate)
    _write(server / "server.key", secrets.key)
    for name in clients:
        identity = make_identity(name)
        _write(server / f"{name}.pub", identity.public)
        _write(folder / name / "ca.pem", secrets.authority)
        _write(folder / name / f"{name}.key", identity.private)


def _check(folder: Path, hosts: Sequence[str], clients: Sequence[str]) -> None:
    require(
        not folder.exists(), f"{folder} is there already; keys are never overwritten: name another"
    )
    for host in hosts:
        require(_HOST.fullmatch(host) is not None, f"--server {host}: no host name or address")
    for name in clients:
        require(_checked(name) != SERVER, f"a client cannot be called '{SERVER}'")
    require(len(set(clients)) == len(clients), "two clients have the same name")


def _checked(name: str) -> str:
    try:
        return TypeAdapter(ClientName).validate_python(name)
    except ValidationError as problem:
        raise UserError(problem.errors()[0]["msg"].removeprefix("Value error, ")) from problem


def _write(path: Path, content: bytes) -> None:
    """A new file that only its owner may read, in a folder that only its owner may open."""
    path.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
        file.write(content)
