"""A Flower grid inside one process: every message goes straight to the client's app.

For tests and benchmarks: no network, no processes, no waiting; all bytes are written and read as
they would be on a wire.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

RUN = 1
Tamper = Callable[[Message, Callable[[], Message]], Message | None]
"""What happens on the way: sees a question, may ask the client for its answer, gives another."""


class InProcessGrid(Grid):
    """Nodes by id, each with its own context; `tamper` stands for everything that goes wrong."""

    def __init__(
        self, app: ClientApp, sites: Mapping[int, str], tamper: Tamper | None = None
    ) -> None:
        self.app, self.tamper = app, tamper
        self.contexts = {node: self._context(node, site) for node, site in sites.items()}
        self.replies: dict[str, Message] = {}
        TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = RUN
        self.sent = 0

    def _context(self, node: int, site: str) -> Context:
        return Context(RUN, node, {"site": site}, RecordDict(), {})

    def set_run(self, run: Any) -> None:
        """There is one run only."""

    @property
    def run(self) -> Any:
        """There is one run only."""
        return None

    def create_message(self, *args: Any, **options: Any) -> Message:
        """Messages are made by their constructor."""
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        """All nodes."""
        return list(self.contexts)

    def get_nodes(self) -> Iterable[NodeInfo]:
        """The same; nobody has a key, or a name by it."""
        return [NodeInfo(node_id=node) for node in self.contexts]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Let every client answer."""
        return [self._delivered(message) for message in messages]

    def _delivered(self, message: Message) -> str:
        """The message's id; empty where there is no such node."""
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
        """The answers that are there."""
        return [self.replies.pop(id) for id in message_ids if id in self.replies]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Both at once."""
        return self.pull_messages(self.push_messages(messages))
