"""The services of `fedfm serve`, with a stand-in for the superlink's Control interface."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import load_pem_public_key, load_ssh_public_key

from fedfm.config import Config
from fedfm.deploy.keys.folders import (
    ServerKeys,
    add_client,
    load_server_keys,
    make_keys,
    revoke_client,
)
from fedfm.deploy.operations.serving import make_service
from fedfm.deploy.operations.status import read_status


@dataclass(frozen=True)
class Node:
    id: int
    name: str
    key: bytes = b""


@dataclass
class Control:
    """Nodes by number, as a superlink has them."""

    nodes: dict[int, Node] = field(default_factory=dict)

    def register(self, name: str, public_key: bytes) -> int:
        id = 7 + len(self.nodes)
        self.nodes[id] = Node(id, name, public_key)
        return id

    def unregister(self, node: int) -> None:
        del self.nodes[node]

    def list_nodes(self) -> list[Node]:
        return [*self.nodes.values()]


@dataclass(frozen=True)
class Serving:
    config: Config
    out: Path
    keys: ServerKeys | None


@dataclass(frozen=True)
class Running:
    serving: Serving
    control: Control


@pytest.fixture
def keys(tmp_path) -> Path:
    make_keys(tmp_path / "keys", ["localhost"], ["a", "b"], days=90)
    return tmp_path / "keys"


def test_keys_come_and_go_by_name(keys, tmp_path):
    control = Control({1: Node(1, "a"), 2: Node(2, "b")})
    out = tmp_path / "run"
    out.mkdir()
    serving = Serving(Config(), out, load_server_keys(keys / "server"))
    with make_service(None)(Running(serving, control)) as operations:
        revoke_client(keys, "a")
        add_client(keys, "c", None)
        operations.tick()
        assert [node.name for node in control.list_nodes()] == ["b", "c"]
        public = load_ssh_public_key((keys / "server/c.pub").read_bytes())
        assert load_pem_public_key(control.list_nodes()[1].key) == public
    assert {*read_status(out)["keys"]} == {"b", "c"}


def test_without_keys_nothing_is_watched(tmp_path):
    running = Running(Serving(Config(), tmp_path, None), Control())
    with make_service(None)(running) as operations:
        assert operations.watcher is None
