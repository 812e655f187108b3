"""The adapter to Flower's private modules: nothing else in FedFM imports them.

Flower offers programs, not functions, for what stands here: the connection of a node (`Fleet`), a
superlink whose interfaces ask for credentials (`make_server`), calls to its Control interface
(`Control`) and the task of a run's server (`take_server_task`). Tried with the versions of Flower
that docs/deploy.md names.

    python -m fedfm.deploy.flower HOST:PORT TOKEN_FILE SECRET_FILE [ca.pem server.pem server.key]
"""

import hmac
import logging
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self, cast

import httpx
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key
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
from flwr.proto.message_pb2 import ObjectTree
from flwr.proto.node_pb2 import Node
from flwr.supercore.error import ApiErrorCode
from flwr.supercore.error import FlowerError as FlowerFailure
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
    ObjectPullError,
    ObjectPushError,
    inflate_object_from_contents,
    pull_objects,
    push_objects,
)
from flwr.supercore.interceptors import (
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from fedfm.core.errors import UserError, require
from fedfm.deploy.programs.receiving import Oversized, ReceivingLimit
from fedfm.deploy.programs.renewal import Renewed, follow, make_context

if TYPE_CHECKING:
    import uvicorn
    from flwr.serverapp import Grid
    from flwr.supercore.retry import RetryInvoker
    from flwr.supercore.runtime import RuntimeHttpClient
    from flwr.superlink.auth_plugin import ControlAuthnPlugin
    from flwr.superlink.grid import HttpGrid

FIRST_WAIT, LONGEST_WAIT = 0.05, 1.0
"""Seconds to wait for a part of a message that the server has not sent yet."""
SERVER_TASK = "flwr-serverapp"
ACQUIRE = "/flwr.proto.Runtime/AcquireTask"
TLS_FAULTS = ("CERTIFICATE_VERIFY_FAILED", "WRONG_VERSION_NUMBER")


class FleetError(Exception):
    """A call to the superlink failed."""


class Unreachable(FleetError):
    """No superlink answers, or not now."""


class Untrusted(FleetError):
    """There is no secure connection."""


class NotAdmitted(FleetError):
    """The superlink does not know the node's key, or the key is in use."""


class Unauthenticated(FleetError):
    """The superlink does not accept the signed request; `ahead` is the local clock's error."""

    def __init__(self, message: str, ahead: float) -> None:
        super().__init__(message)
        self.ahead = ahead


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


@contextmanager
def _translate() -> Iterator[None]:
    """Turn the failures of calls into a `FleetError`."""
    try:
        yield
    except httpx.HTTPStatusError as problem:
        raise _explain(problem.response) from problem
    except httpx.TransportError as problem:
        untrusted = any(fault in str(problem) for fault in TLS_FAULTS)
        raise (Untrusted if untrusted else Unreachable)(str(problem)) from problem
    except (ObjectPullError, ObjectPushError, Oversized) as problem:
        raise FleetError(str(problem)) from problem


def _explain(answer: httpx.Response) -> FleetError:
    """Return the error that an HTTP answer stands for."""
    failure = FlowerFailure.from_json(answer.text)
    text = f"[code: {failure.code}] {failure.message}" if failure else f"HTTP {answer.status_code}"
    if failure and failure.code == ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED:
        return NotAdmitted(text)
    if answer.status_code == httpx.codes.UNAUTHORIZED:
        return Unauthenticated(text, _measure_clock(answer))
    if answer.status_code >= httpx.codes.INTERNAL_SERVER_ERROR:
        return Unreachable(text)
    return FleetError(text)


def _measure_clock(answer: httpx.Response) -> float:
    """Return by how many seconds this machine's clock is ahead of the server's."""
    with suppress(KeyError, ValueError, TypeError):
        there = parsedate_to_datetime(answer.headers.get_list("date")[-1])
        return (datetime.now(UTC) - there).total_seconds()
    return 0.0


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
            [_version("SuperNode"), NodeAuthHttpInterceptor(private, public)],
        )
        self._receiving = ReceivingLimit(limit)
        self._client._client.event_hooks = {"response": [self._receiving.check]}
        self._client._client.headers["accept-encoding"] = "identity"
        self._node = Node()
        self._heartbeat = HeartbeatSender(self._beat)

        try:
            self._sign_on()
        except BaseException:
            self._client.close()
            raise

    def _sign_on(self) -> None:
        with _translate():
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
        """Return the next message, if there is one."""
        with _translate():
            answer = self._client.PullMessages(PullMessagesRequest(node=self._node))
            if not answer.messages_list:
                return None
            (head, *_), (tree, *_) = answer.messages_list, answer.message_object_trees
            run, refusal = int(head.metadata.run_id), ""
            try:
                message = self._fetch(tree, run)
            except Oversized as problem:
                message, refusal = message_from_proto(head), f"the message is too large: {problem}"
            make_confirm_message_received_fn_protobuf(
                self._client.ConfirmMessageReceived, self._node, run
            )(tree.object_id)
        message.metadata.__dict__["_message_id"] = tree.object_id
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
        with _translate(), no_object_id_recompute():
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


def load_key_pair(path: Path) -> tuple[ec.EllipticCurvePrivateKey, ec.EllipticCurvePublicKey]:
    """Return the private and public key in an OpenSSH file."""
    try:
        key = load_ssh_private_key(path.read_bytes(), None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as problem:
        raise UserError(f"{path} is not a private key without a password: {problem}") from None
    require(isinstance(key, ec.EllipticCurvePrivateKey), f"{path}: the key must be an ECDSA key")
    return key, key.public_key()  # type: ignore[return-value]  # required above


def read_public_key(path: Path) -> bytes:
    """Return the public key in an OpenSSH file, in the form that Flower stores."""
    try:
        key = load_ssh_public_key(path.read_bytes())
    except (ValueError, UnsupportedAlgorithm) as problem:
        raise UserError(f"{path} is not a public key: {problem}") from None
    require(isinstance(key, ec.EllipticCurvePublicKey), f"{path}: the key must be an ECDSA key")
    return public_key_to_bytes(key)  # type: ignore[arg-type]  # required above


def _version(name: str) -> RuntimeVersionHttpInterceptor:
    return RuntimeVersionHttpInterceptor(component_name=name)


class RegisteredNode(NamedTuple):
    """A node that a superlink knows."""

    id: int
    name: str
    status: str
    public_key: bytes


class _Bearer:
    """Adds a token to requests."""

    def __init__(self, token: str) -> None:
        self.token = token

    def intercept(self, context: Any, call_next: Callable[[Any], httpx.Response]) -> httpx.Response:
        context.request.headers["Authorization"] = f"Bearer {self.token}"
        return call_next(context)


class Control:
    """Calls to the Control interface of a superlink, which asks for a token; use it by `with`."""

    def __init__(self, address: str, ca: Path | None, token: str) -> None:
        from flwr.supercore.control import ControlHttpClient

        root = ca.read_bytes() if ca else None
        self._client = ControlHttpClient.from_server_address(
            address, ca is None, root, [_version("fedfm"), _Bearer(token)]
        )

    def __enter__(self) -> Self:
        """Return the calls."""
        return self

    def __exit__(self, *problem: object) -> None:
        """Close the connection."""
        self._client.close()

    def register(self, name: str, public_key: bytes) -> int:
        """Admit the node with this key; return its id."""
        from flwr.proto.control_pb2 import RegisterNodeRequest

        with _translate():
            request = RegisterNodeRequest(public_key=public_key, name=name)
            return int(self._client.RegisterNode(request).node_id)

    def unregister(self, node: int) -> None:
        """Admit a node no longer; a connected one is cut off."""
        from flwr.proto.control_pb2 import UnregisterNodeRequest

        with _translate():
            self._client.UnregisterNode(UnregisterNodeRequest(node_id=node))

    def list_nodes(self) -> list[RegisteredNode]:
        """Return the nodes that the superlink knows."""
        from flwr.proto.control_pb2 import ListNodesRequest

        with _translate():
            nodes = self._client.ListNodes(ListNodesRequest()).nodes_info
        return [RegisteredNode(n.node_id, n.name, n.status, n.public_key) for n in nodes]

    def start_run(self, app: Path) -> int:
        """Start a run of the app in a folder; return its id."""
        import hashlib

        from flwr.cli.build import build_fab_from_disk
        from flwr.common.serde import fab_to_proto
        from flwr.proto.control_pb2 import StartRunRequest
        from flwr.supercore.fab import Fab

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of Flower's own code
            content = build_fab_from_disk(app)
        fab = Fab(hashlib.sha256(content).hexdigest(), content, {})
        with _translate():
            return int(self._client.StartRun(StartRunRequest(fab=fab_to_proto(fab))).run_id)


@contextmanager
def take_server_task(
    address: str, ca: Path | None, secret: bytes, run: int, watch: Callable[[], None]
) -> Iterator["Grid"]:
    """Take the task of a run's server; yield the grid to its nodes, and report how the block ends.

    The app that the run names is not used. `watch` is called while the superlink does not answer,
    and may raise.
    """
    from flwr.common.constant import SubStatus
    from flwr.proto.runtime_pb2 import PushTaskOutputRequest

    root, retry = ca.read_bytes() if ca else None, _make_retry(watch)
    token = _acquire_task(address, root, secret, run, retry)
    grid, context = _open_grid(address, root, token, retry)
    status = SubStatus.FAILED
    try:
        with _translate(), _send_heartbeats(grid._runtime_client):
            yield grid
        status = SubStatus.COMPLETED
    finally:
        retry.max_tries = 1
        with suppress(httpx.HTTPError):
            output = PushTaskOutputRequest(context=context, sub_status=status)
            grid._runtime_client.PushTaskOutput(output)
        grid.close()


def _make_retry(watch: Callable[[], None]) -> "RetryInvoker":
    """Return what repeats calls while the superlink does not answer."""
    from flwr.supercore.retry import RetryInvoker, exponential

    def wait(seconds: float) -> None:
        watch()
        time.sleep(seconds)

    waits = partial(exponential, max_delay=2)
    return RetryInvoker(waits, httpx.TransportError, None, None, wait_function=wait)


def _acquire_task(
    address: str, root: bytes | None, secret: bytes, run: int, retry: "RetryInvoker"
) -> str:
    """Return the token of the task of a run's server."""
    from flwr.proto.runtime_pb2 import AcquireTaskRequest
    from flwr.supercore.runtime import RuntimeHttpClient

    credentials = SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods={ACQUIRE})
    request = AcquireTaskRequest(supported_task_types=[SERVER_TASK])
    with (
        RuntimeHttpClient.from_server_address(
            address, root is None, root, [_version("fedfm"), credentials], retry_invoker=retry
        ) as client,
        _translate(),
    ):
        while (answer := client.AcquireTask(request)).task.run_id != run or not answer.token:
            retry.wait_function(FIRST_WAIT)
    return str(answer.token)


def _open_grid(
    address: str, root: bytes | None, token: str, retry: "RetryInvoker"
) -> tuple["HttpGrid", Any]:
    """Return the grid of a task that was taken, and the task's context."""
    from flwr.common.serde import run_from_proto
    from flwr.proto.runtime_pb2 import PullTaskInputRequest
    from flwr.supercore.task_identity import TaskIdentity
    from flwr.superlink.grid import http_grid

    soon = partial(pull_objects, initial_backoff=FIRST_WAIT)
    http_grid.pull_objects = soon  # type: ignore[attr-defined]  # Flower would wait for a second
    grid = http_grid.HttpGrid(address, root is None, root, token=token)
    grid._retry_invoker = retry
    task = grid._runtime_client.PullTaskInput(PullTaskInputRequest())
    TaskIdentity.task_id, TaskIdentity.run_id = task.task_id, task.run.run_id
    TaskIdentity.node_id = task.context.node_id
    grid.set_run(run_from_proto(task.run))
    return grid, task.context


@contextmanager
def _send_heartbeats(client: "RuntimeHttpClient") -> Iterator[None]:
    """Tell the superlink that the server's task is at work, inside the block."""
    from flwr.proto.runtime_pb2 import SendTaskHeartbeatRequest

    def beat() -> bool:
        try:
            return bool(client.SendTaskHeartbeat(SendTaskHeartbeatRequest()).success)
        except Exception:  # the main thread meets the same problem, and says so
            return False

    heartbeat = HeartbeatSender(beat)
    heartbeat.start()
    try:
        yield
    finally:
        heartbeat.stop()


def make_server(
    host: str, port: int, token: str, secret: bytes, tls: Sequence[str] = ()
) -> "uvicorn.Server":
    """Return a server of a superlink; see `make_superlink`.

    New connections use the newest certificate.
    """
    import uvicorn
    from flwr.supercore.http_logging import get_uvicorn_log_config

    certificate, key = (tls[1], tls[2]) if tls else (None, None)
    config = uvicorn.Config(
        make_superlink(host, port, token, secret, tls),
        host=host,
        port=port,
        log_config=get_uvicorn_log_config(logging.INFO),
        ssl_certfile=certificate,
        ssl_keyfile=key,
        ws="none",
        timeout_graceful_shutdown=2,
    )
    config.load()
    if config.ssl:
        follow(config.ssl, Renewed(tls, make_context))
    return uvicorn.Server(config)


def make_superlink(host: str, port: int, token: str, secret: bytes, tls: Sequence[str] = ()) -> Any:
    """Return a superlink as a web application; it keeps nothing on disk and starts no process.

    Its Control interface asks for the `token`, and whoever takes a task must know the `secret`.
    With `tls` (the files of authority, certificate and key) it admits registered nodes only.
    """
    from flwr.common.constant import ISOLATION_MODE_PROCESS, TRANSPORT_TYPE_GRPC_RERE
    from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME
    from flwr.superlink.cli.flower_superlink import SuperLinkLifespan
    from flwr.superlink.config_loader import SuperLinkLifespanConfig
    from flwr.superlink.main import create_app

    files = dict(zip(("ssl_ca_certfile", "ssl_certfile", "ssl_keyfile"), tls, strict=False))
    settings: dict[str, Any] = dict.fromkeys(SuperLinkLifespanConfig.__dataclass_fields__)
    settings |= {
        **files,
        "host": host,
        "port": port,
        "insecure": not tls,
        "certificates": tuple(Path(file).read_bytes() for file in tls) or None,
        "enable_supernode_auth": bool(tls),
        "authn_plugin": _make_plugin(token),
        "superexec_auth_secret": secret,
        "isolation": ISOLATION_MODE_PROCESS,
        "database": FLWR_IN_MEMORY_DB_NAME,
        "fleet_api_type": TRANSPORT_TYPE_GRPC_RERE,
        "control_address": "",
        "enable_event_log": False,
        "simulation": False,
        "runtime_dependency_install": False,
    }
    return create_app(SuperLinkLifespanConfig(**settings), SuperLinkLifespan)


def _make_plugin(token: str) -> "ControlAuthnPlugin":
    """Return what lets the holder of a token use the Control interface."""
    from flwr.common.constant import ACCESS_TOKEN_KEY, NOOP_ACCOUNT_NAME, NOOP_FLWR_AID
    from flwr.supercore.auth.typing import AccountInfo
    from flwr.superlink.auth_plugin import NoOpControlAuthnPlugin

    class TokenPlugin(NoOpControlAuthnPlugin):
        def validate_tokens_in_metadata(
            self, metadata: Sequence[tuple[str, str | bytes]]
        ) -> tuple[bool, AccountInfo | None]:
            given = str(dict(metadata).get(ACCESS_TOKEN_KEY, ""))
            valid = hmac.compare_digest(given.encode(), token.encode())
            return valid, AccountInfo(NOOP_FLWR_AID, NOOP_ACCOUNT_NAME) if valid else None

        def refresh_tokens(self, metadata: Any) -> tuple[None, None]:
            return None, None

    return TokenPlugin()


def main(address: str, token: str, secret: str, *tls: str) -> None:
    """Run a superlink whose credentials are in files, until a signal ends the process."""
    host, _, port = address.rpartition(":")
    credentials = Path(token).read_text(), Path(secret).read_bytes()
    server = make_server(host.strip("[]"), int(port), *credentials, tls)
    with suppress(KeyboardInterrupt):
        server.run()
    if not server.started:
        sys.exit(3)


if __name__ == "__main__":
    main(*sys.argv[1:])
