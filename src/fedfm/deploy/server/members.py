"""The members of a federation: their names, numbers and nodes.

A client is known by its name, which gives it a fixed number; its node may change when its machine
restarts. Numbers and the agreement are kept in members.json for a restarted server.
"""

import json
import logging
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedfm.core.checkpoint import Damaged
from fedfm.core.errors import UserError, require
from fedfm.core.files import write_atomically
from fedfm.core.sorting import natural_key
from fedfm.deploy.agreement import Agreement, Introduction
from fedfm.deploy.events import Disconnected, Joined, NodeRefused, emit
from fedfm.deploy.server.introductions import agree, explain_misfit

logger = logging.getLogger(__name__)


@dataclass
class Members:
    """The clients that were admitted, and the nodes of those that are connected."""

    path: Path
    wanted: Sequence[str] = ()
    """The classes that the config names."""
    agreement: Agreement | None = None
    unit: float = 1.0
    """The unit in which clients count their samples."""
    settled: bool = False
    """Whether the unit takes the method into account."""
    own_data: bool = False
    """Whether a client has data of its own, not a share of the config's."""
    numbers: dict[str, int] = field(default_factory=dict)
    nodes: dict[int, int] = field(default_factory=dict)
    """The node of every connected client, by the client's number."""
    token: str = field(default_factory=lambda: secrets.token_hex(8))
    """Identifies this federation, so that no client answers for another one."""
    refused: dict[int, str] = field(default_factory=dict)
    """Why nodes were refused; empty where they refused themselves."""
    unsent: dict[int, str] = field(default_factory=dict)
    """Those reasons that have not been sent to their nodes yet."""
    deferred: set[int] = field(default_factory=set)
    """Nodes that wait because a connected node has the same name."""
    introductions: dict[int, Introduction] = field(default_factory=dict)
    """The introductions of connected nodes, until `closed`."""
    expected: int | None = None
    """How many clients a restarted server waits for; None: no round has ended yet."""
    closed: bool = False
    """Whether the agreement is final; until then all connected nodes agree again at each change."""

    @staticmethod
    def load(path: Path, wanted: Sequence[str]) -> "Members":
        """Return the members of an earlier start, if there was one."""
        members = Members(path, wanted)
        if path.exists():
            try:
                known = json.loads(path.read_text())
                members.numbers = {str(k): int(v) for k, v in known["numbers"].items()}
                members.agreement = Agreement.parse(known["agreement"])
                members.unit = float(known["unit"])
                members.settled = bool(known["settled"])
                members.own_data = bool(known.get("own_data", True))
                members.token = str(known["token"])
                members.expected = known.get("expected")
                members.closed = True
            except (ValueError, LookupError, TypeError, UserError) as problem:
                raise Damaged(path, problem) from problem
        return members

    def save(self) -> None:
        """Write what a restarted server needs."""
        assert self.agreement is not None
        known = {
            "numbers": self.numbers,
            "agreement": self.agreement.dump(),
            "unit": self.unit,
            "settled": self.settled,
            "own_data": self.own_data,
            "token": self.token,
            "expected": self.expected,
        }
        write_atomically(self.path, (json.dumps(known, indent=1) + "\n").encode())

    def expect(self, clients: int) -> None:
        """Let a restarted server wait for so many clients."""
        if self.expected != clients:
            self.expected = clients
            self.save()

    def find_strangers(self, nodes: Iterable[int]) -> list[int]:
        """Return the nodes that have not introduced themselves; forget nodes that are gone."""
        here = set(nodes)
        for client in sorted(client for client, node in self.nodes.items() if node not in here):
            emit(Disconnected(client))
        self.nodes = {client: node for client, node in self.nodes.items() if node in here}
        self.refused = {node: why for node, why in self.refused.items() if node in here}
        gone = self.introductions.keys() - here
        for node in gone:
            del self.introductions[node]
        if gone and not self.closed:
            self._agree()
        return sorted(here - set(self.nodes.values()) - self.refused.keys())

    def admit(
        self, values: Mapping[int, Any], keys: Mapping[int, str | None] | None = None
    ) -> list[int]:
        """Number the nodes that fit, given the values of their introductions; return the numbers.

        `keys` has the registered names of the nodes' public keys: no node may use another name.
        """
        introductions = {}
        for node, given in values.items():
            try:
                introduction = Introduction.parse(given)
                _check_registered(introduction.name, (keys or {}).get(node))
                introductions[node] = introduction
            except UserError as reason:
                self._refuse(node, str(reason))
        if self.closed:
            return self._number(introductions)
        self.introductions |= introductions
        return self._agree()

    def _agree(self) -> list[int]:
        """Agree again among all connected nodes, as if they had come together."""
        held, before = set(self.nodes.values()), self.refused
        self.refused = {n: why for n, why in before.items() if n not in self.introductions}
        self.agreement, self.numbers, self.nodes, self.own_data = None, {}, {}, False
        if not self.introductions:
            return []
        first = sorted(self.introductions, key=lambda node: node not in held)
        fitting = {node: self.introductions[node] for node in first}
        self.agreement, misfits = agree(fitting, self.wanted or None)
        for node, why in misfits.items():
            self._refuse(node, why, known=before.get(node) == why)
            del fitting[node]
        return self._number(fitting)

    def close(self) -> None:
        """Make the agreement final."""
        if not self.closed:
            self.closed, self.introductions = True, {}
            for name, client in self.numbers.items():
                self._log_number(client, name)

    def _number(self, introductions: Mapping[int, Introduction]) -> list[int]:
        in_order = sorted(introductions.items(), key=lambda item: natural_key(item[1].name))
        numbers = (self._number_one(node, introduction) for node, introduction in in_order)
        return sorted(client for client in numbers if client is not None)

    def _number_one(self, node: int, introduction: Introduction) -> int | None:
        assert self.agreement is not None
        name = introduction.name
        if reason := explain_misfit(self.agreement, introduction):
            self._refuse(node, reason)
            return None
        if self.numbers.get(name) in self.nodes:
            self._defer(node, name)
            return None
        client = self.numbers.setdefault(name, len(self.numbers))
        self.nodes[client] = node
        self.own_data |= not introduction.share
        if self.closed:
            self._log_number(client, name)
        return client

    def _log_number(self, client: int, name: str) -> None:
        emit(Joined(client, name, self.nodes[client]))

    def _refuse(self, node: int, reason: str, known: bool = False) -> None:
        self.refused[node] = reason
        if not known:
            self.unsent[node] = reason
            emit(NodeRefused(node, reason))

    def _defer(self, node: int, name: str) -> None:
        """Let a node wait whose name is taken; it may be the same client after a restart."""
        if node not in self.deferred:
            logger.warning("node %d waits: there is a client '%s' already", node, name)
        self.deferred.add(node)

    def forget_nodes(self, clients: Iterable[int]) -> None:
        """Forget the nodes of clients, so that they introduce themselves again."""
        for client in clients:
            self.nodes.pop(client, None)


def _check_registered(name: str, registered: str | None) -> None:
    require(
        registered in (None, name),
        f"its name is '{name}', but its key is registered as '{registered}'; use that name",
    )
