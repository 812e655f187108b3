"""Questions to clients and their answers, whatever happens in between.

A node that does not answer in time, answers something else, or reports an error is left out, and
the log says why once. The caller gets the answers of the others.
"""

import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any

from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedfm.config.deployment import MEGABYTE, Deployment
from fedfm.core.errors import UserError, require
from fedfm.core.files import write_atomically
from fedfm.deploy.events import AnswerLeftOut, Asked, emit
from fedfm.deploy.packets import Arrays, Packet, pack, unpack
from fedfm.deploy.validation import to_one_line

logger = logging.getLogger(__name__)
ROOM = 64 * MEGABYTE
"""The bytes that an answer may have beside its tensors: keys and shares of many clients."""
PAUSE = 0.2
"""Seconds between two checks for answers."""
TYPES = {"train": MessageType.TRAIN, "evaluate": MessageType.EVALUATE}
"""Flower's message types by kind of question; all other questions are queries."""


class Messenger:
    """Sends questions to nodes and collects their answers."""

    def __init__(
        self,
        grid: Grid,
        deployment: Deployment,
        token: str,
        pause: float = PAUSE,
        message_limit: Path | None = None,
    ) -> None:
        self.grid, self.deployment, self.token, self.pause = grid, deployment, token, pause
        self.asked, self.file = 0, message_limit
        self.largest = 0
        self.expect(0)
        self.lost: set[int] = set()
        """Nodes that reported that they have lost their state."""
        self.silent: set[int] = set()
        """Nodes that did not answer the last question in time."""

    def expect(self, size: int) -> None:
        """Prepare for answers whose tensors have this many bytes; refuse much larger ones.

        The proxy reads the limit from a file, and stops such an answer on its way.
        """
        limit = min(self.deployment.largest, size + ROOM)
        if limit != self.largest:
            self.largest = limit
            if self.file:
                write_atomically(self.file, f"{limit}\n".encode())

    def nodes(self) -> list[int]:
        """Return the connected nodes."""
        return sorted(self.grid.get_node_ids())

    def names(self) -> dict[int, str | None]:
        """Return the connected nodes with the registered names of their public keys."""
        return {info.node_id: info.name or None for info in self.grid.get_nodes()}

    def notify(self, kind: str, packets: Mapping[int, Packet]) -> None:
        """Send packets to nodes without waiting for answers."""
        self._push(kind, packets, {"token": self.token, "kind": kind, "number": 0})

    def ask(self, kind: str, questions: Mapping[int, Packet]) -> dict[int, Packet]:
        """Return the valid answers that come in time, by node."""
        self.asked += 1
        self.silent = set()
        emit(Asked(kind, len(questions)))
        stamp = {"token": self.token, "kind": kind, "number": self.asked}
        sent = self._push(kind, questions, stamp)
        answers: dict[int, Packet] = {}
        for node, content in self._replies(sent):
            try:
                answers[node] = self._read_answer(node, content, stamp)
            except UserError as reason:
                emit(AnswerLeftOut(to_one_line(reason), node, question=kind))
        return dict(sorted(answers.items()))

    def _push(
        self, kind: str, questions: Mapping[int, Packet], stamp: Mapping[str, Any]
    ) -> dict[str, int]:
        """Send the questions; return the node of each message."""
        arrays: Arrays = {}
        messages = [
            Message(
                pack(Packet({**facts, **stamp}, trees), arrays),
                node,
                TYPES.get(kind, f"{MessageType.QUERY}.{kind}"),
                ttl=self.deployment.timeout,
            )
            for node, (facts, trees) in questions.items()
        ]
        ids = list(self.grid.push_messages(messages)) if messages else []
        unsent = [node for node, id in zip_longest(questions, ids) if not id]
        _log_missing(unsent, "the question could not be sent")
        return {id: node for node, id in zip(questions, ids, strict=False) if id}

    def _replies(self, sent: Mapping[str, int]) -> Iterator[tuple[int, RecordDict]]:
        """Yield the first reply of each node as it comes; log the nodes without one."""
        waiting = dict(sent)
        deadline = time.monotonic() + self.deployment.timeout
        while waiting:
            before = len(waiting)
            for reply in self.grid.pull_messages(list(waiting)):
                node = waiting.pop(reply.metadata.reply_to_message_id, None)
                if node is None:
                    sender = reply.metadata.src_node_id
                    logger.warning("node %d sent an unexpected answer: ignored", sender)
                elif reply.has_error():
                    _log_missing([node], _last_line_of_error(reply))
                elif node != reply.metadata.src_node_id:
                    _log_missing([node], "another node answered in its name")
                else:
                    yield node, reply.content
            none_came = len(waiting) == before  # a client that died while it sent blocks the others
            if none_came and time.monotonic() > deadline:
                break
            time.sleep(self.pause if waiting else 0)
        self.silent = set(waiting.values())
        _log_missing(self.silent, f"no answer within {self.deployment.timeout:g} s", late=True)

    def _read_answer(self, node: int, content: RecordDict, stamp: Mapping[str, Any]) -> Packet:
        answer = unpack(content, self.largest)
        if answer.facts.get("lost") is True:
            self.lost.add(node)
        require("error" not in answer.facts, str(answer.facts.get("error")))
        same = {key: answer.facts.get(key) for key in stamp} == dict(stamp)
        require(same, "it answers another question, or one of another round")
        return answer


def _log_missing(nodes: Iterable[int], reason: str, late: bool = False) -> None:
    for node in nodes:
        emit(AnswerLeftOut(to_one_line(reason), node, late=late))


def _last_line_of_error(reply: Message) -> str:
    lines = (reply.error.reason or "").strip().splitlines()
    return lines[-1] if lines else f"error {reply.error.code}"
