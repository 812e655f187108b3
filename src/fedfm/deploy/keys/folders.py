"""The folders of a federation's keys: its authority's, the server's, and one for each client."""

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType

from fedfm.core.errors import UserError, missing_package_error, require
from fedfm.deploy.keys.fingerprints import fingerprint
from fedfm.deploy.validation import check_name

SERVER = "server"
"""The folder for the server's machine."""
KEPT = "authority"
"""The folder of the authority's key, which belongs on no machine of the federation."""
REVOKED = "revoked"
"""The file of public keys that must not come back, in the server's folder."""
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

    @property
    def files(self) -> tuple[Path, Path, Path]:
        """The authority, the certificate and its key."""
        return self.ca, self.certificate, self.key


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
    """Write new keys into the new `folder`: for the authority, the server and each client."""
    require(
        not folder.exists(), f"{folder} exists: keys are never overwritten; choose another folder"
    )
    _check_hosts(hosts)
    for name in clients:
        _check_client(name)
    require(len(set(clients)) == len(clients), "two clients have the same name")
    certificates = _import_certificates()
    authority = certificates.make_authority()
    _write_all(folder / KEPT, authority.to_files())
    names = list(dict.fromkeys([*hosts, *ALWAYS]))
    _write_all(folder / SERVER, certificates.make_server_files(names, days, authority))
    for name in clients:
        make_client(folder, name)


def add_client(folder: Path, name: str, public: Path | None) -> Path:
    """Let one more client join: with a new key, or with the `public` key that it made.

    `folder` is that of `make_keys` or, with `public`, the server's. Return the folder or the file
    that is new.
    """
    _check_client(name)
    server = find_server(folder)
    taken = f"there is a key of '{name}' already: revoke it first, or choose another name"
    require(not (server / f"{name}.pub").exists(), f"{server}: {taken}")
    if public is None:
        require(
            server != folder,
            f"{folder} is the server's own folder, where no client's private key belongs: let the "
            f"client make its key (ssh-keygen -t ecdsa -b 384 -N '' -f {name}.key), and give "
            "--public FILE",
        )
        return make_client(folder, name)
    _replace(server / f"{name}.pub", _read_public(public, server))
    return server / f"{name}.pub"


def make_client(folder: Path, name: str) -> Path:
    """Make a client's key in a folder of `make_keys`; return the client's folder."""
    require(not (folder / name).exists(), f"{folder / name} exists: keys are never overwritten")
    private, public = _import_certificates().make_identity(name)
    ca = (folder / SERVER / "ca.pem").read_bytes()
    _write_all(folder / name, {"ca.pem": ca, f"{name}.key": private})
    _replace(folder / SERVER / f"{name}.pub", public)
    return folder / name


def revoke_client(folder: Path, name: str) -> str:
    """Stop to accept a client's key, for good; return its fingerprint."""
    server = find_server(folder)
    file = server / f"{check_name(name)}.pub"
    known = ", ".join(path.stem for path in sorted(server.glob("*.pub"))) or "none"
    require(file.is_file(), f"{server}: there is no key of '{name}'; there are: {known}")
    key = file.read_bytes()
    with os.fdopen(_open_new(server / REVOKED, os.O_APPEND), "ab") as revoked:
        revoked.write(b" ".join(key.split()[:2]) + f" {name}\n".encode())
        os.fsync(revoked.fileno())
    file.unlink()
    return fingerprint(key)


def renew_server(folder: Path, hosts: Sequence[str], days: int, kept: Path | None) -> Path:
    """Make a new certificate of the same authority for the server; return the server's folder.

    Without `hosts` it is for the names of the old one. `kept` is the authority's folder, if it is
    not in `folder`.
    """
    _check_hosts(hosts)
    server, authority = find_server(folder), kept or folder / KEPT
    require(
        (authority / "ca.key").is_file(),
        f"{authority}/ca.key is not there: give --authority FOLDER, the folder '{KEPT}' of `fedfm "
        "keys make`. Older keys have none: make new ones",
    )
    certificates = _import_certificates()
    signer = certificates.read_authority(server / "ca.pem", authority / "ca.key")
    old = certificates.read_names(server / "server.pem")
    names = list(dict.fromkeys([*(hosts or old), *ALWAYS]))
    files = certificates.make_server_files(names, days, signer)
    for name in ("server.key", "server.pem"):
        _replace(server / name, files[name])
    return server


def find_server(folder: Path) -> Path:
    """Return the server's folder of keys: in a folder of `make_keys`, or the folder itself."""
    for server in (folder / SERVER, folder):
        if (server / "ca.pem").is_file() and (server / "server.pem").is_file():
            return server
    raise UserError(
        f"{folder} holds no keys of a server: give the folder of `fedfm keys make`, or the one "
        "that the server has as --keys"
    )


def _read_public(path: Path, server: Path) -> bytes:
    """Return a public key as one line; refuse one that is in use or was revoked."""
    require(path.is_file(), f"--public {path}: there is no such file")
    key = path.read_bytes()
    require(b"PRIVATE KEY" not in key, f"{path} is a private key, which must stay where it is")
    try:
        new = fingerprint(key)
    except UserError as problem:
        raise UserError(f"--public {path}: {problem}") from problem
    for file in sorted(server.glob("*.pub")):
        require(fingerprint(file.read_bytes()) != new, f"{path} is the key of '{file.stem}'")
    revoked = server / REVOKED
    lines = revoked.read_bytes().splitlines() if revoked.exists() else []
    require(
        new not in map(fingerprint, lines),
        f"{path} was revoked: let the client make a new key",
    )
    return b" ".join(key.split()) + b"\n"


def _import_certificates() -> ModuleType:
    try:
        return import_module("fedfm.deploy.keys.certificates")
    except ImportError as problem:
        raise missing_package_error("making keys needs cryptography", "flower") from problem


def _check_hosts(hosts: Sequence[str]) -> None:
    for host in hosts:
        require(_HOST.fullmatch(host) is not None, f"--server {host}: not a host name or address")


def _check_client(name: str) -> None:
    require(
        check_name(name) not in (SERVER, KEPT, REVOKED),
        f"a client cannot have the name '{name}'",
    )


def _write_all(folder: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        _write(folder / name, content)


def _write(path: Path, content: bytes) -> None:
    """Write a new file that only its owner can read, in a folder that only its owner can open."""
    path.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    with os.fdopen(_open_new(path, os.O_EXCL), "wb") as file:
        file.write(content)


def _replace(path: Path, content: bytes) -> None:
    """Write a file in one step: a running server may read it at any moment."""
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    _write(new, content)
    new.replace(path)


def _open_new(path: Path, flags: int) -> int:
    return os.open(path, os.O_CREAT | os.O_WRONLY | flags, 0o600)
