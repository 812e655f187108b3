"""Who is in a federation: names, numbers, and the nodes behind them.

A client is known by its name, which gives it a number for good; the node behind it may change when
its machine is restarted. Numbers and what was agreed are kept in members.json, so that a restarted
server knows its clients.
"""

import json
import logging
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedfm.core.checkpoint import Damaged, write_atomically
from fedfm.core.errors import UserError, require
from fedfm.deploy.agreement import Agreement, Introduction, admit, agree

logger = logging.getLogger(__name__)


@dataclass
class Members:
    """The clients that were admitted, and how to reach those that are there."""

    path: Path
    wanted: Sequence[str] = ()
    """The classes that the config names."""
    agreement: Agreement | None = None
    unit: float = 1.0
    """In what unit clients count their samples."""
    settled: bool = False
    """Whether that unit takes the method into account."""
    own_data: bool = False
    """Whether a client brought data of its own, and not a share of the config's."""
    numbers: dict[str, int] = field(default_factory=dict)
    nodes: dict[int, int] = field(default_factory=dict)
    """The node of every client that is there, by its number."""
    token: str = field(default_factory=lambda: secrets.token_hex(8))
    """Names this federation, so that no client answers for another."""
    refused: dict[int, str] = field(default_factory=dict)
    """Why nodes were told no; nothing where they said no themselves."""
    untold: dict[int, str] = field(default_factory=dict)
    """Of those, what they have not been told yet."""
    deferred: set[int] = field(default_factory=set)
    """Nodes whose name another one has, as long as that one is there."""
    introductions: dict[int, Introduction] = field(default_factory=dict)
    """Of the nodes that are there, until `closed`."""
    closed: bool = False
    """Whether what is agreed stands: until then those who are there agree anew with newcomers."""

    @staticmethod
    def load(path: Path, wanted: Sequence[str]) -> "Members":
        """Those of an earlier start, if there was one."""
        members = Members(path, wanted)
        if path.exists():
            try:
                known = json.loads(path.read_text())
                members.numbers = {str(k): int(v) for k, v in known["numbers"].items()}
                members.agreement = Agreement.of(known["agreement"])
                members.unit = float(known["unit"])
                members.settled = bool(known["settled"])
                members.own_data = bool(known.get("own_data", True))
                members.token = str(known["token"])
                members.closed = True
            except (ValueError, LookupError, TypeError, UserError) as problem:
                raise Damaged(path, problem) from problem
        return members

    def save(self) -> None:
        """Keep what must survive the server."""
        assert self.agreement is not None
        known = {
            "numbers": self.numbers,
            "agreement": self.agreement.values(),
            "unit": self.unit,
            "settled": self.settled,
            "own_data": self.own_data,
            "token": self.token,
        }
        write_atomically(self.path, (json.dumps(known, indent=1) + "\n").encode())

    def strangers(self, nodes: Iterable[int]) -> list[int]:
        """Nodes that have not introduced themselves; forgets nodes that are gone."""
        here = set(nodes)
        self.nodes = {client: node for client, node in self.nodes.items() if node in here}
        self.refused = {node: why for node, why in self.refused.items() if node in here}
        gone = self.introductions.keys() - here
        self.introductions = {n: told for n, told in self.introductions.items() if n in here}
        if gone and not self.closed:
            self._agree()
        return sorted(here - set(self.nodes.values()) - self.refused.keys())

    def admit(
        self, told: Mapping[int, Any], keys: Mapping[int, str | None] | None = None
    ) -> list[int]:
        """Give those a number who fit, by what their nodes told; the numbers, ascending.

        `keys` has the names under which nodes' public keys are registered: nobody has another's.
        """
        introductions = {}
        for node, values in told.items():
            try:
                introductions[node] = Introduction.of(values)
                check_name(introductions[node].name, (keys or {}).get(node))
            except UserError as reason:
                introductions.pop(node, None)
                self._refuse(node, str(reason))
        if self.closed:
            return self._number(introductions)
        self.introductions |= introductions
        return self._agree()

    def _agree(self) -> list[int]:
        """Agree anew over all that are there, as if they had come together."""
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
        """What is agreed by now stands."""
        if not self.closed:
            self.closed, self.introductions = True, {}
            for name, client in self.numbers.items():
                self._say(client, name)

    def _number(self, introductions: Mapping[int, Introduction]) -> list[int]:
        in_order = sorted(introductions.items(), key=lambda item: natural(item[1].name))
        return sorted(
            client for node, one in in_order if (client := self._admitted(node, one)) is not None
        )

    def _admitted(self, node: int, told: Introduction) -> int | None:
        assert self.agreement is not None
        try:
            admit(self.agreement, told)
        except UserError as reason:
            self._refuse(node, str(reason))
            return None
        if self.numbers.get(told.name) in self.nodes:
            self._defer(node, told.name)
            return None
        client = self.numbers.setdefault(told.name, len(self.numbers))
        self.nodes[client] = node
        self.own_data |= not told.share
        if self.closed:
            self._say(client, told.name)
        return client

    def _say(self, client: int, name: str) -> None:
        logger.info("client %d is '%s', node %d", client, name, self.nodes[client])

    def _refuse(self, node: int, reason: str, known: bool = False) -> None:
        self.refused[node] = reason
        if not known:
            self.untold[node] = reason
            logger.warning("node %d is refused: %s", node, reason)

    def _defer(self, node: int, name: str) -> None:
        """A node of a name that another one has: perhaps the same client, restarted; ask later."""
        if node not in self.deferred:
            logger.warning("node %d waits: there is a client '%s' already", node, name)
        self.deferred.add(node)

    def lose(self, client: int) -> None:
        """A client's node is to introduce itself anew."""
        self.nodes.pop(client, None)


def check_name(name: str, registered: str | None) -> None:
    """Refuse a client under another name than its key has."""
    require(
        registered in (None, name),
        f"it calls itself '{name}', but its key is registered as '{registered}'; use that name",
    )


def natural(name: str) -> list[tuple[bool, int, str]]:
    """A key that sorts the numbers in names by value: c2 before c10."""
    parts = re.findall(r"\d+|\D+", name)
    return [(not part.isdigit(), int(part) if part.isdigit() else 0, part) for part in parts]
