"""The server's grid: it signs questions and notices when a process that it needs has ended."""

from collections.abc import Callable, Iterable
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid

from fedfm.deploy.payload import FACTS, TREES
from fedfm.deploy.signatures import Digests, Signer, attach_signature, digest


class ServerGrid(Grid):
    """Passes calls on to Flower's grid.

    `watch` is called before each of them and may raise. With a `signer`, which returns the one to
    use, every question is signed for its node; a tree that several questions share is hashed once.
    """

    def __init__(
        self,
        grid: Grid,
        run: int,
        watch: Callable[[], None],
        signer: Callable[[], Signer] | None = None,
    ) -> None:
        self.grid, self.run_id, self.watch, self.signer = grid, run, watch, signer

    def set_run(self, run: Any) -> None:
        """Do nothing: the run is set."""

    @property
    def run(self) -> Any:
        """The run of Flower's grid."""
        return self.grid.run

    def create_message(self, *args: Any, **options: Any) -> Message:
        """Raise an error: messages are made by their constructor."""
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        """Return the connected nodes."""
        self.watch()
        return self.grid.get_node_ids()

    def get_nodes(self) -> Iterable[Any]:
        """Return the connected nodes with the names of their keys."""
        self.watch()
        return self.grid.get_nodes()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Sign and send questions."""
        self.watch()
        questions = [*messages]
        if self.signer:
            self._sign(self.signer(), questions)
        return self.grid.push_messages(questions)

    def _sign(self, signer: Signer, questions: Iterable[Message]) -> None:
        known: dict[int, str] = {}

        def hash_once(data: bytes) -> str:
            if id(data) not in known:
                known[id(data)] = digest(data)
            return known[id(data)]

        for question in questions:
            content, about = question.content, question.metadata
            facts = digest(str(content.config_records[FACTS]["json"]).encode())
            trees = {
                name: hash_once(each.data) for name, each in content.array_records[TREES].items()
            }
            signature = signer.sign(
                Digests(facts, trees), self.run_id, about.dst_node_id, about.ttl
            )
            attach_signature(content, signature)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the answers that have come."""
        self.watch()
        return self.grid.pull_messages(message_ids)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Raise an error: the server sends and receives by separate calls."""
        raise NotImplementedError
