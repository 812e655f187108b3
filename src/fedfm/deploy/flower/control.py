"""Calls to the Control interface of a superlink."""

import hashlib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Self

import httpx
from flwr.cli.build import build_fab_from_disk
from flwr.common.serde import fab_to_proto
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    RegisterNodeRequest,
    StartRunRequest,
    UnregisterNodeRequest,
)
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

from fedfm.deploy.flower.errors import translate


class RegisteredNode(NamedTuple):
    """A node that a superlink knows."""

    id: int
    name: str
    status: str
    public_key: bytes


class _Bearer:
    """Adds a token to requests."""

    def __init__(self, token: str) -> None:
        self.token = token

    def intercept(self, context: Any, call_next: Callable[[Any], httpx.Response]) -> httpx.Response:
        context.request.headers["Authorization"] = f"Bearer {self.token}"
        return call_next(context)


class Control:
    """Calls to the Control interface of a superlink, which asks for a token; use it by `with`."""

    def __init__(self, address: str, ca: Path | None, token: str) -> None:

        root = ca.read_bytes() if ca else None
        self._client = ControlHttpClient.from_server_address(
            address,
            ca is None,
            root,
            [RuntimeVersionHttpInterceptor(component_name="fedfm"), _Bearer(token)],
        )

    def __enter__(self) -> Self:
        """Return the calls."""
        return self

    def __exit__(self, *problem: object) -> None:
        """Close the connection."""
        self._client.close()

    def register(self, name: str, public_key: bytes) -> int:
        """Admit the node with this key; return its id."""
        with translate():
            request = RegisterNodeRequest(public_key=public_key, name=name)
            return int(self._client.RegisterNode(request).node_id)

    def unregister(self, node: int) -> None:
        """Admit a node no longer; a connected one is cut off."""
        with translate():
            self._client.UnregisterNode(UnregisterNodeRequest(node_id=node))

    def list_nodes(self) -> list[RegisteredNode]:
        """Return the nodes that the superlink knows."""
        with translate():
            nodes = self._client.ListNodes(ListNodesRequest()).nodes_info
        return [RegisteredNode(n.node_id, n.name, n.status, n.public_key) for n in nodes]

    def start_run(self, app: Path) -> int:
        """Start a run of the app in a folder; return its id."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of Flower's own code
            content = build_fab_from_disk(app)
        fab = Fab(hashlib.sha256(content).hexdigest(), content, {})
        with translate():
            return int(self._client.StartRun(StartRunRequest(fab=fab_to_proto(fab))).run_id)
