"""The services of `fedfm serve`: connects them to the superlink that the command has started."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_ssh_public_key,
)

from fedfm.config import Config
from fedfm.deploy.keys.folders import ServerKeys
from fedfm.deploy.operations.service import Operations, Watched, operate
from fedfm.deploy.programs.addresses import Address


class NodeLike(Protocol):
    """A node that a superlink knows."""

    @property
    def id(self) -> int:
        """Its number."""
        ...

    @property
    def name(self) -> str:
        """The name of its public key."""
        ...


class ControlLike(Protocol):
    """The interface of a superlink that admits nodes."""

    def register(self, name: str, public_key: bytes) -> int:
        """Admit the node with this public key, in PEM; return its number."""
        ...

    def unregister(self, node: int) -> None:
        """Admit a node no longer."""
        ...

    def list_nodes(self) -> Sequence[NodeLike]:
        """Return the nodes that are known."""
        ...


class ServingLike(Protocol):
    """The settings of a server."""

    @property
    def config(self) -> Config:
        """The run's config."""
        ...

    @property
    def out(self) -> Path:
        """The run's folder."""
        ...

    @property
    def keys(self) -> ServerKeys | None:
        """The server's keys."""
        ...


class RunningLike(Protocol):
    """A superlink that runs."""

    @property
    def serving(self) -> ServingLike:
        """Its settings."""
        ...

    @property
    def control(self) -> ControlLike:
        """Where nodes are admitted."""
        ...


class ControlRegistry:
    """Registers keys by the name of their client, which a superlink knows by its node."""

    def __init__(self, control: ControlLike) -> None:
        self.control = control

    def register(self, name: str, public_key: bytes) -> None:
        """Accept a client's public key, in OpenSSH's format, from now on."""
        key = load_ssh_public_key(public_key)
        pem = key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        self.control.register(name, pem)

    def unregister(self, name: str) -> None:
        """Stop to accept the keys of this name."""
        for node in self.control.list_nodes():
            if node.name == name:
                self.control.unregister(node.id)


def make_service(
    metrics: Address | None,
) -> Callable[[RunningLike], AbstractContextManager[Operations]]:
    """Return what runs beside a server: audit log, status, keys and, at `metrics`, web pages."""

    def start(running: RunningLike) -> AbstractContextManager[Operations]:
        serving = running.serving
        registry = ControlRegistry(running.control)
        keys = Watched(serving.keys.ca.parent, registry) if serving.keys else None
        return operate(serving.out, serving.config.deployment, keys, metrics)

    return start
