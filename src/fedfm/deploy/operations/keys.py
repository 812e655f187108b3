"""Public keys that come and go: the folder of keys is the list of those who may join."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from fedfm.core.errors import require
from fedfm.deploy.events import KeyAdded, KeyProblem, KeyRemoved, emit
from fedfm.deploy.keys.fingerprints import fingerprint
from fedfm.deploy.validation import check_name, to_one_line


class Registry(Protocol):
    """The place where a server registers the public keys that it accepts."""

    def register(self, name: str, public_key: bytes) -> object:
        """Accept a client's public key, in OpenSSH's format, from now on."""
        ...

    def unregister(self, name: str) -> object:
        """Stop to accept the key of this name, and disconnect whoever uses it."""
        ...


class KeyWatcher:
    """Compares the folder of public keys with those that are registered.

    The keys that are there at the start are registered already. Without a `registry`, keys that
    come or go later do so at the next start.
    """

    def __init__(self, folder: Path, registry: Registry | None) -> None:
        self.folder, self.registry = folder, registry
        self.registered = read_public_keys(folder)
        """The keys that the registry has, by name."""
        self.reported: dict[str, bytes] = {}
        """The keys whose problem was told, by name."""

    def announce(self, before: Mapping[str, str]) -> None:
        """Tell which keys have changed since an earlier start, given its fingerprints by name."""
        now = {name: fingerprint(key) for name, key in self.registered.items()}
        for name in sorted(before.keys() - now.keys()):
            emit(KeyRemoved(name, before[name]))
        for name, key in sorted(now.items()):
            if before.get(name) != key:
                emit(KeyAdded(name, key))

    def poll(self) -> None:
        """Register new keys, and unregister those that are gone or were replaced."""
        if self.registry is None:
            return
        there = read_public_keys(self.folder)
        for name, key in sorted(self.registered.items()):
            if there.get(name) != key:
                self._try(name, key, self._unregister)
        for name, key in there.items():
            if name not in self.registered and self.reported.get(name) != key:
                self._try(name, key, self._register)

    def _try(self, name: str, key: bytes, action: Callable[[str, bytes], None]) -> None:
        """Do it, or tell once why it cannot be done."""
        try:
            action(name, key)
            self.reported.pop(name, None)
        except Exception as problem:  # whatever a registry raises, the others go on
            if self.reported.get(name) != key:
                self.reported[name] = key
                emit(KeyProblem(to_one_line(name), to_one_line(problem)))

    def _register(self, name: str, key: bytes) -> None:
        require(bool(key), "its file is empty, or this account may not read it")
        text = fingerprint(key)
        assert self.registry is not None
        self.registry.register(check_name(name), key)
        self.registered[name] = key
        emit(KeyAdded(name, text))

    def _unregister(self, name: str, key: bytes) -> None:
        assert self.registry is not None
        self.registry.unregister(name)
        del self.registered[name]
        emit(KeyRemoved(name, fingerprint(key)))


def read_public_keys(folder: Path) -> dict[str, bytes]:
    """Return the public keys in a server's folder by name; one that cannot be read is empty."""
    keys = {}
    for path in sorted(folder.glob("*.pub")):
        try:
            keys[path.stem] = path.read_bytes()
        except FileNotFoundError:  # removed at this moment
            continue
        except PermissionError:
            keys[path.stem] = b""
    return keys
