"""A Flower grid in one process: every message goes directly to the client's app.

For tests and benchmarks: no network, no processes, no waiting. All messages are packed and unpacked
as for a network.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from fedfm.deploy.client.answerer import Answerer
from fedfm.deploy.payload import read_payload, write_payload

RUN = 1
App = Callable[[Message, Context], Message]
"""A client's app: answers a message to the node of this context."""
Tamper = Callable[[Message, Callable[[], Message]], Message | None]
"""Gets a question and a function that returns the client's answer; returns an answer or None."""


class WarmApp:
    """Answers as the workers of `fedfm join` do: each node keeps its answerer."""

    def __init__(self) -> None:
        self.answerers: dict[int, Answerer] = {}

    def __call__(self, message: Message, context: Context) -> Message:
        """Let the answerer of the node answer."""
        site = Path(str(context.node_config["site"]))
        answerer = self.answerers.setdefault(context.node_id, Answerer(site, context.state))
        answer = answerer.answer(read_payload(message.content))
        return Message(write_payload(answer), reply_to=message)


class InProcessGrid(Grid):
    """Nodes by id, each with its own context; `tamper` causes faults."""

    def __init__(self, app: App, sites: Mapping[int, str], tamper: Tamper | None = None) -> None:
        self.app, self.tamper = app, tamper
        self.contexts = {node: self._context(node, site) for node, site in sites.items()}
        self.replies: dict[str, Message] = {}
        TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = RUN
        self.sent = 0

    def _context(self, node: int, site: str) -> Context:
        return Context(RUN, node, {"site": site}, RecordDict(), {})

    def set_run(self, run: Any) -> None:
        """Do nothing: there is only one run."""

    @property
    def run(self) -> Any:
        """None: there is only one run."""
        return None

    def create_message(self, *args: Any, **options: Any) -> Message:
        """Raise an error: messages are made by their constructor."""
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        """Return all nodes."""
        return list(self.contexts)

    def get_nodes(self) -> Iterable[NodeInfo]:
        """Return all nodes; none has a registered key."""
        return [NodeInfo(node_id=node) for node in self.contexts]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Let every client answer."""
        return [self._deliver(message) for message in messages]

    def _deliver(self, message: Message) -> str:
        """Let the node answer; return the message's id, empty if there is no such node."""
        context = self.contexts.get(message.metadata.dst_node_id)
        if context is None:
            return ""
        self.sent += 1
        id = f"{self.sent}"
        message.metadata.__dict__["_message_id"] = id

        def answer() -> Message:
            return self.app(message, context)

        reply = self.tamper(message, answer) if self.tamper else answer()
        if reply is not None:
            self.replies[id] = reply
        return id

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the answers to these messages."""
        return [self.replies.pop(id) for id in message_ids if id in self.replies]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages and return the answers."""
        return self.pull_messages(self.push_messages(messages))
