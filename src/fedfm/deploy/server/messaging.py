"""Questions to clients and their answers, whatever happens on the way.

Who does not answer in time, answers something else, or says that it cannot, is left out: a line in
the log says why, once. The others' answers are what the caller gets.
"""

import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from itertools import zip_longest
from typing import Any

from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedfm.config.deployment import Deployment
from fedfm.core.errors import UserError, require
from fedfm.deploy.packets import Packet
from fedfm.deploy.validation import in_a_line
from fedfm.deploy.wire import Arrays, packed, unpacked

logger = logging.getLogger(__name__)
PAUSE = 0.2
"""Seconds between two looks for answers."""
TYPES = {"train": MessageType.TRAIN, "evaluate": MessageType.EVALUATE}
"""Flower's types of messages; all other questions are queries."""


def message_type(kind: str) -> str:
    """Flower's message type of a kind of question."""
    return TYPES.get(kind, f"{MessageType.QUERY}.{kind}")


class Post:
    """Delivers questions to nodes and collects their answers."""

    def __init__(
        self, grid: Grid, deployment: Deployment, token: str, pause: float = PAUSE
    ) -> None:
        self.grid, self.deployment, self.token, self.pause = grid, deployment, token, pause
        self.asked = 0
        self.lost: set[int] = set()
        """Nodes that said that they have lost what they kept."""
        self.silent: set[int] = set()
        """Nodes that did not answer the last question in time."""

    def nodes(self) -> list[int]:
        """The nodes that are connected now."""
        return sorted(self.grid.get_node_ids())

    def names(self) -> dict[int, str | None]:
        """The nodes that are connected now, and the names that their public keys have."""
        return {info.node_id: info.name or None for info in self.grid.get_nodes()}

    def tell(self, kind: str, news: Mapping[int, Packet]) -> None:
        """Say something to nodes, and not wait for what they say to it."""
        self._push(kind, news, {"token": self.token, "kind": kind, "number": 0})

    def ask(self, kind: str, questions: Mapping[int, Packet]) -> dict[int, Packet]:
        """The answers of those nodes, by number, that gave a proper one in time."""
        self.asked += 1
        self.silent = set()
        stamp = {"token": self.token, "kind": kind, "number": self.asked}
        sent = self._push(kind, questions, stamp)
        answers: dict[int, Packet] = {}
        for node, content in self._replies(sent):
            try:
                answers[node] = self._checked(node, content, stamp)
            except UserError as reason:
                logger.warning("node %d is left out of '%s': %s", node, kind, in_a_line(reason))
        return dict(sorted(answers.items()))

    def _push(
        self, kind: str, questions: Mapping[int, Packet], stamp: Mapping[str, Any]
    ) -> dict[str, int]:
        """Send the questions; which message went to which node."""
        arrays: Arrays = {}
        messages = [
            Message(
                packed(Packet({**facts, **stamp}, trees), arrays),
                node,
                message_type(kind),
                ttl=self.deployment.timeout,
            )
            for node, (facts, trees) in questions.items()
        ]
        ids = list(self.grid.push_messages(messages)) if messages else []
        lost = [node for node, id in zip_longest(questions, ids) if not id]
        self._miss(lost, "the question could not be sent")
        return {id: node for node, id in zip(questions, ids, strict=False) if id}

    def _replies(self, sent: Mapping[str, int]) -> Iterator[tuple[int, RecordDict]]:
        """The replies as they come, the first of each node; those that never come are logged."""
        waiting = dict(sent)
        deadline = time.monotonic() + self.deployment.timeout
        while waiting:
            for reply in self.grid.pull_messages(list(waiting)):
                node = waiting.pop(reply.metadata.reply_to_message_id, None)
                if node is None:
                    sender = reply.metadata.src_node_id
                    logger.warning("node %d answers what nobody waits for: ignored", sender)
                elif reply.has_error():
                    self._miss([node], reason_of(reply))
                elif node != reply.metadata.src_node_id:
                    self._miss([node], "another node answered in its name")
                else:
                    yield node, reply.content
            if time.monotonic() > deadline:
                break
            time.sleep(self.pause if waiting else 0)
        self.silent = set(waiting.values())
        self._miss(self.silent, f"no answer within {self.deployment.timeout:g} s")

    def _miss(self, nodes: Iterable[int], reason: str) -> None:
        for node in nodes:
            logger.warning("node %d is left out: %s", node, in_a_line(reason))

    def _checked(self, node: int, content: RecordDict, stamp: Mapping[str, Any]) -> Packet:
        answer = unpacked(content, self.deployment.largest)
        if answer.facts.get("lost") is True:
            self.lost.add(node)
        told = {key: answer.facts.get(key) for key in stamp}
        require("error" not in answer.facts, str(answer.facts.get("error")))
        require(told == dict(stamp), "it answers another question, or one of another round")
        return answer


def reason_of(reply: Message) -> str:
    """Why there is an error instead of an answer, in a line."""
    lines = (reply.error.reason or "").strip().splitlines()
    return lines[-1] if lines else f"error {reply.error.code}"
