"""A node's connection to a superlink, by Flower's fleet protocol."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self, cast

import httpx
from flwr.app import Error, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
    RegisterNodeFleetRequest,
    UnregisterNodeFleetRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.message_pb2 import ObjectTree
from flwr.proto.node_pb2 import Node
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_confirm_message_received_fn_protobuf,
    make_pull_object_fn_protobuf,
    make_push_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import (
    inflate_object_from_contents,
    pull_objects,
    push_objects,
)
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from fedfm.deploy.flower.errors import translate
from fedfm.deploy.flower.keys import load_key_pair
from fedfm.deploy.flower.receiving_limit import Oversized, ReceivingLimit

FIRST_WAIT, LONGEST_WAIT = 0.05, 1.0
"""Seconds to wait for a part of a message that the server has not sent yet."""


class Question(NamedTuple):
    """A message for a node."""

    message: Message
    refusal: str = ""
    """Why it was not fetched; its content is empty then."""

    @property
    def run(self) -> int:
        """The run that the message belongs to."""
        return int(self.message.metadata.run_id)

    @property
    def content(self) -> RecordDict:
        """What the message holds."""
        return self.message.content


@dataclass
class _Announced:
    """A message for a node whose parts may be still to come."""

    head: ProtoMessage
    tree: ObjectTree
    question: Question | None = None
    """The message, from when all parts have come until the superlink has heard of it."""


class Fleet:
    """A node's connection to a superlink, from now until the end of a `with` block.

    `ca` is the authority of a superlink with TLS, `key` the private key of a registered node.
    Without them the node registers itself. The node opens no port and fetches no app, and no
    message of more than `limit` bytes.
    """

    def __init__(
        self, address: str, ca: Path | None = None, key: Path | None = None, limit: int = 2**40
    ) -> None:
        self.registers_itself = key is None
        private, public = generate_key_pairs() if key is None else load_key_pair(key)
        self._public = public_key_to_bytes(public)
        self._client = FleetHttpClient.from_server_address(
            address,
            ca is None,
            ca.read_bytes() if ca else None,
            [
                RuntimeVersionHttpInterceptor(component_name="SuperNode"),
                NodeAuthHttpInterceptor(private, public),
            ],
        )
        self._receiving = ReceivingLimit(limit)
        self._client._client.event_hooks = {"response": [self._receiving.check]}
        self._client._client.headers["accept-encoding"] = "identity"
        self._node = Node()
        self._announced: _Announced | None = None
        self._heartbeat = HeartbeatSender(self._beat)

        try:
            self._sign_on()
        except BaseException:
            self._client.close()
            raise

    def _sign_on(self) -> None:
        with translate():
            if self.registers_itself:
                self._client.RegisterNode(RegisterNodeFleetRequest(public_key=self._public))
            answer = self._client.ActivateNode(
                ActivateNodeRequest(
                    public_key=self._public, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL
                )
            )
        self._node = Node(node_id=answer.node_id)
        self._heartbeat.start()

    @property
    def node(self) -> int:
        """The node's id."""
        return int(self._node.node_id)

    def __enter__(self) -> Self:
        """Return the connection."""
        return self

    def __exit__(self, *problem: object) -> None:
        """Sign off, if the superlink is there."""
        if self._heartbeat.is_running:
            self._heartbeat.stop()
        with suppress(httpx.HTTPError):
            self._client.DeactivateNode(DeactivateNodeRequest(node_id=self.node))
            if self.registers_itself:
                self._client.UnregisterNode(UnregisterNodeFleetRequest(node_id=self.node))
        self._client.close()

    def _beat(self) -> bool:
        try:
            request = SendNodeHeartbeatRequest(
                node=self._node, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL
            )
            return bool(self._client.SendNodeHeartbeat(request).success)
        except httpx.HTTPError:
            return False

    def receive(self) -> Question | None:
        """Return the next message, if there is one.

        A superlink announces a message once. So a call after one that failed goes on with the
        message that was announced then.
        """
        with translate():
            self._announced = announced = self._announced or self._pull()
            if announced is None:
                return None
            question = announced.question = announced.question or self._fetch_question(announced)
            make_confirm_message_received_fn_protobuf(
                self._client.ConfirmMessageReceived, self._node, question.run
            )(announced.tree.object_id)
        self._announced = None
        return question

    def _pull(self) -> "_Announced | None":
        answer = self._client.PullMessages(PullMessagesRequest(node=self._node))
        if not answer.messages_list:
            return None
        return _Announced(answer.messages_list[0], answer.message_object_trees[0])

    def _fetch_question(self, announced: "_Announced") -> Question:
        head, refusal = announced.head, ""
        try:
            message = self._fetch(announced.tree, int(head.metadata.run_id))
        except Oversized as problem:
            message, refusal = message_from_proto(head), f"the message is too large: {problem}"
        message.metadata.__dict__["_message_id"] = announced.tree.object_id
        return Question(message, refusal)

    def _fetch(self, tree: ObjectTree, run: int) -> Message:
        parts = [part.object_id for part in iterate_object_tree(tree)]
        with self._receiving.message(len(parts)):
            contents = pull_objects(
                parts,
                make_pull_object_fn_protobuf(self._client.PullObject, self._node, run),
                initial_backoff=FIRST_WAIT,
                backoff_cap=LONGEST_WAIT,
            )
        return cast(Message, inflate_object_from_contents(tree.object_id, contents))

    def reply(self, question: Question, answer: RecordDict | str, seconds: float = 0.0) -> None:
        """Send the content of an answer, or the reason why there is none."""
        content = Error(0, answer) if isinstance(answer, str) else answer
        message = Message(content, reply_to=question.message)
        message.metadata.__dict__["_message_id"] = message.object_id
        with translate(), no_object_id_recompute():
            objects = get_all_nested_objects(message)
            bare = remove_content_from_message(message) if message.has_content() else message
            wanted = self._client.PushMessages(
                PushMessagesRequest(
                    node=self._node,
                    messages_list=[message_to_proto(bare)],
                    message_object_trees=[get_object_tree(message)],
                    clientapp_runtime_list=[seconds],
                )
            )
            push = make_push_object_fn_protobuf(
                self._client.PushObject, self._node, question.run, wanted.session_id
            )
            push_objects(objects, push, object_ids_to_push=set(wanted.objects_to_push))
