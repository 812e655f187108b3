"""A server that sends too much: a client refuses it before the bytes are in its memory."""

import threading
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from flwr.app import Message
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeResponse,
    PullMessagesResponse,
    PushMessagesRequest,
    PushMessagesResponse,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatResponse
from flwr.proto.message_pb2 import ObjectTree, PullObjectResponse
from flwr.supercore.inflatable.inflatable_object import get_object_tree
from flwr.supercore.task_identity import TaskIdentity

from fedfm.deploy.flower.errors import FleetError
from fedfm.deploy.flower.fleet import Fleet
from fedfm.deploy.flower.receiving_limit import MIB, PARTS
from fedfm.deploy.payload import Payload, write_payload

NODE, RUN, LIMIT = 7, 1, 8 * MIB
HUGE = 1000 * MIB
PIECE = bytes(64 * 1024)
PART = PullObjectResponse(
    object_found=True, object_available=True, object_content=bytes(MIB)
).SerializeToString()


class Hostile(ThreadingHTTPServer):
    """A superlink that answers a request for a part of a message with `part`."""

    daemon_threads = True

    def __init__(self, tree: ObjectTree, head: Message, part: Callable[..., None]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.part, self.sent, self.pulls, self.errors = part, 0, 0, list[str]()
        self.answers: dict[str, Any] = {
            "activate-node": ActivateNodeResponse(node_id=NODE),
            "send-node-heartbeat": SendNodeHeartbeatResponse(success=True),
            "pull-messages": PullMessagesResponse(
                messages_list=[message_to_proto(remove_content_from_message(head))],
                message_object_trees=[tree],
            ),
            "push-messages": PushMessagesResponse(),
        }


class Handler(BaseHTTPRequestHandler):
    """Answers the calls of a node."""

    protocol_version = "HTTP/1.1"
    server: Hostile

    def do_POST(self) -> None:
        """Answer a call."""
        body = self.rfile.read(int(self.headers["content-length"]))
        call = self.path.rpartition("/")[2]
        if call == "push-messages":
            (said,) = PushMessagesRequest.FromString(body).messages_list
            self.server.errors.append(said.error.reason)
        if call == "pull-object":
            self.server.pulls += 1
            self.server.part(self)
            return
        answer = self.server.answers.get(call)
        content = answer.SerializeToString() if answer else b""
        self.head(("content-length", str(len(content))))
        self.wfile.write(content)

    def head(self, *headers: tuple[str, str]) -> None:
        """Begin an answer."""
        self.send_response(200)
        for header in headers:
            self.send_header(*header)
        self.end_headers()

    def stream(self, size: int, chunked: bool = False) -> None:
        """Send so many bytes, as long as the client reads them."""
        try:
            for _ in range(size // len(PIECE)):
                self.wfile.write(b"%x\r\n%s\r\n" % (len(PIECE), PIECE) if chunked else PIECE)
                self.server.sent += len(PIECE)
        except OSError:
            self.close_connection = True

    def log_message(self, *args: object) -> None:
        """Stay silent."""


@contextmanager
def serve(part: Callable[[Handler], None], parts: int = 0) -> Iterator[tuple[Hostile, str]]:
    """A hostile superlink with one message of so many parts more than an honest one."""
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = RUN
    head = Message(write_payload(Payload("{}", {"model": b"0"})), NODE, "query.hello", ttl=60)
    tree = get_object_tree(head)
    tree.children.extend(ObjectTree(object_id=f"{k:064x}") for k in range(parts))
    server = Hostile(tree, head, part)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server, f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def announce(handler: Handler) -> None:
    handler.head(("content-length", str(HUGE)))
    handler.stream(HUGE)


def conceal(handler: Handler) -> None:
    handler.head(("transfer-encoding", "chunked"))
    handler.stream(HUGE, chunked=True)


def compress(handler: Handler) -> None:
    handler.head(("content-encoding", "gzip"), ("content-length", str(MIB)))
    handler.stream(MIB)


def many(handler: Handler) -> None:
    handler.head(("content-length", str(len(PART))))
    handler.wfile.write(PART)
    handler.server.sent += len(PART)


@pytest.mark.parametrize(
    ("part", "parts"),
    [(announce, 0), (conceal, 0), (compress, 0), (many, PARTS), (announce, 5 * PARTS)],
)
def test_a_message_over_the_limit_is_refused_before_it_is_read(part, parts):
    """The client answers why; memory and bytes on the way stay near the limit, or far below."""
    with serve(part, parts) as (server, address), Fleet(address, limit=LIMIT) as fleet:
        tracemalloc.start()
        try:
            question = fleet.receive()
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert question is not None
        assert question.refusal.startswith("the message is too large: ")
        fleet.reply(question, question.refusal)
        assert server.errors == [question.refusal]
    allowed = 3 * LIMIT if part is many else LIMIT
    assert peak < allowed
    assert server.sent < 3 * allowed  # what lies in the buffers of sockets
    if parts > PARTS:
        assert server.pulls == 0


def test_other_answers_are_small(monkeypatch):
    """A server cannot hide a message in an answer that needs no message."""
    with serve(announce) as (server, address), Fleet(address, limit=LIMIT) as fleet:
        server.answers["pull-messages"] = PullMessagesResponse(
            messages_list=[], message_object_trees=[ObjectTree(object_id="x" * 5 * MIB)]
        )
        with pytest.raises(FleetError, match="no part of a message"):
            fleet.receive()
