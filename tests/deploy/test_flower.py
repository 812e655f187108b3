"""The adapter to Flower, with a superlink in this process: who is let in, and who is not."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from flwr.app import Message
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE

from fedfm.core.errors import UserError
from fedfm.deploy.errors import Refusal
from fedfm.deploy.flower import errors
from fedfm.deploy.flower.control import Control
from fedfm.deploy.flower.errors import (
    FleetError,
    NotAdmitted,
    Unauthenticated,
    Unreachable,
    Untrusted,
)
from fedfm.deploy.flower.fleet import Fleet, Question
from fedfm.deploy.flower.keys import load_key_pair, read_public_key
from fedfm.deploy.flower.task import open_server_grid
from fedfm.deploy.keys.folders import load_client_keys, load_server_keys, make_keys
from fedfm.deploy.payload import Payload, read_payload, write_payload
from fedfm.deploy.programs.addresses import free_address
from fedfm.deploy.server.signed_grid import ServerGrid
from fedfm.deploy.signatures import Signer, Verifier, read_signature
from tests.deploy.superlink import SECRET, TOKEN, run_superlink, write_app

QUESTION = Payload('{"kind":"hello","number":1}', {"model": b"0" * 1000})


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The keys of two clients, and of one that is a stranger."""
    place = tmp_path_factory.mktemp("keys")
    make_keys(place / "keys", ["127.0.0.1"], ["a", "b"], days=1)
    make_keys(place / "forged", ["127.0.0.1"], ["c"], days=1)
    return place


@pytest.fixture(scope="module")
def plain(folder) -> Iterator[str]:
    with run_superlink() as address:
        yield str(address)


@pytest.fixture(scope="module")
def closed(folder) -> Iterator[str]:
    """With TLS; only the client `a` is registered."""
    keys = load_server_keys(folder / "keys" / "server")
    with run_superlink(keys) as address:
        with Control(str(address), keys.ca, TOKEN) as control:
            control.register("a", read_public_key(keys.clients["a"]))
        yield str(address)


@pytest.fixture
def app(tmp_path) -> Path:
    return write_app(tmp_path / "app", tmp_path / "mark")


def start_run(address: str, app: Path, ca: Path | None = None) -> int:
    with Control(address, ca, TOKEN) as control:
        return control.start_run(app)


def ask(grid, node: int, question: Payload) -> Message:
    """Ask a node, and wait for its reply."""
    message = Message(write_payload(question), node, "query.hello", ttl=60)
    ids = list(grid.push_messages([message]))
    while not (replies := list(grid.pull_messages(ids))):
        time.sleep(0.01)
    return replies[0]


def answer(fleet: Fleet, react: Callable[[Question], object]) -> threading.Thread:
    """Let a node react to one question, in another thread."""

    def work() -> None:
        while (question := fleet.receive()) is None:
            time.sleep(0.01)
        fleet.reply(question, react(question))  # type: ignore[arg-type]

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_questions_and_answers(plain, app):
    run = start_run(plain, app)
    large = Payload(QUESTION.facts, {"model": bytes(range(256)) * 25_000})
    with (
        open_server_grid(plain, None, SECRET, run, lambda: None) as grid,
        Fleet(plain) as fleet,
    ):
        assert list(grid.get_node_ids()) == [fleet.node]
        for question in (QUESTION, large):
            node = answer(fleet, lambda question: question.content)
            assert read_payload(ask(grid, fleet.node, question).content) == question
            node.join()
        node = answer(fleet, lambda question: f"not in run {question.run}")
        reply = ask(grid, fleet.node, QUESTION)
        node.join()
        assert reply.error.reason == f"not in run {run}"
        assert fleet.receive() is None


@pytest.mark.parametrize("call", ["PullObject", "ConfirmMessageReceived"])
def test_a_question_is_not_lost_while_the_network_is_cut(plain, app, monkeypatch, call):
    """The superlink announces a message once; a node that was cut off then fetches it later."""
    run = start_run(plain, app)
    with (
        open_server_grid(plain, None, SECRET, run, lambda: None) as grid,
        Fleet(plain) as fleet,
    ):
        message = Message(write_payload(QUESTION), fleet.node, "query.hello", ttl=60)
        ids = list(grid.push_messages([message]))

        def cut(*given: object) -> None:
            raise httpx.ReadError("cut")

        with monkeypatch.context() as patch:
            patch.setattr(fleet._client, call, cut)
            for _ in range(2):
                with pytest.raises(Unreachable):
                    fleet.receive()
        question = fleet.receive()
        assert question is not None
        assert read_payload(question.content) == QUESTION
        fleet.reply(question, question.content)
        while not (replies := list(grid.pull_messages(ids))):
            time.sleep(0.01)
        assert read_payload(replies[0].content) == QUESTION
        assert fleet.receive() is None


def test_a_node_signs_off(plain, app):
    run = start_run(plain, app)
    with open_server_grid(plain, None, SECRET, run, lambda: None) as grid:
        with Fleet(plain), Fleet(plain):
            assert len(list(grid.get_node_ids())) == 2
        assert list(grid.get_node_ids()) == []


def test_nodes_come_and_go(closed, folder):
    keys = load_server_keys(folder / "keys" / "server")
    b = load_client_keys(folder / "keys" / "b", "b")
    with pytest.raises(NotAdmitted):
        Fleet(closed, b.ca, b.key)
    with Control(closed, keys.ca, TOKEN) as control:
        node = control.register("b", read_public_key(keys.clients["b"]))
        assert {each.name: each.id for each in control.list_nodes()}["b"] == node
        with Fleet(closed, b.ca, b.key) as fleet:
            assert fleet.node == node
            control.unregister(node)
            with pytest.raises(Unauthenticated):
                fleet.receive()
        left = {each.name for each in control.list_nodes() if each.status != "unregistered"}
        assert "b" not in left


def test_who_is_not_let_in(closed, folder):
    a = load_client_keys(folder / "keys" / "a", "a")
    c = load_client_keys(folder / "forged" / "c", "c")
    with pytest.raises(NotAdmitted):
        Fleet(closed, a.ca, c.key)
    with pytest.raises(Untrusted):
        Fleet(closed, c.ca, c.key)
    with pytest.raises(FleetError):
        Fleet(closed, a.ca)
    with Fleet(closed, a.ca, a.key), pytest.raises(NotAdmitted):
        Fleet(closed, a.ca, a.key)
    with pytest.raises(Unreachable):
        Fleet(str(free_address()), a.ca, a.key)


@pytest.fixture
def both(folder) -> Iterator[tuple[str, Path]]:
    """A superlink with TLS that knows `a` and `b`, and its authority."""
    keys = load_server_keys(folder / "keys" / "server")
    with run_superlink(keys) as address:
        with Control(str(address), keys.ca, TOKEN) as control:
            for name in "ab":
                control.register(name, read_public_key(keys.clients[name]))
        yield str(address), keys.ca


def test_a_client_does_not_act_as_another(both, folder, app):
    """Neither with the other's number, nor by an answer to a question that it does not know."""
    address, ca = both
    a, b = (load_client_keys(folder / "keys" / name, name) for name in "ab")
    run = start_run(address, app, ca)
    with (
        open_server_grid(address, ca, SECRET, run, lambda: None) as grid,
        Fleet(address, a.ca, a.key) as liar,
        Fleet(address, b.ca, b.key) as other,
    ):
        nodes = (liar.node, other.node)
        ids = [
            *grid.push_messages(
                [Message(write_payload(QUESTION), node, "query.hello", ttl=60) for node in nodes]
            )
        ]
        own, question = liar.receive(), other.receive()
        assert own is not None
        assert question is not None
        liar._node, honest = other._node, liar._node
        for call in (liar.receive, partial(liar.reply, question, "in another's name")):
            with pytest.raises(Unauthenticated):
                call()
        liar._node = honest
        own.message.metadata.dst_node_id = other.node  # as if it were a question to the other
        own.message.metadata.__dict__["_message_id"] = "0" * 64
        liar.reply(own, "in another's name")
        other.reply(question, question.content)
        replies: list[Message] = []
        while not replies:
            replies = [each for each in grid.pull_messages(ids) if not each.has_error()]
            time.sleep(0.01)
        assert [read_payload(each.content) for each in replies] == [QUESTION]
        assert list(grid.pull_messages(ids[:1])) == []


@pytest.fixture
def logged() -> Iterator[list[logging.LogRecord]]:
    """What Flower's log gets, wherever its own handler writes."""
    records = list[logging.LogRecord]()

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    handler, logger = Keep(), logging.getLogger("flwr")
    logger.addHandler(handler)
    yield records
    logger.removeHandler(handler)


def test_requests_of_strangers_leave_nothing_in_the_log(capfd, logged):
    """They would fill the disk."""
    with run_superlink() as address:
        capfd.readouterr()
        logged.clear()
        for call in ("pull-messages", "activate-node", "nothing"):
            for kind in (PROTOBUF_MEDIA_TYPE, "text/plain"):
                answered = httpx.post(
                    f"http://{address}/v1/fleet/{call}",
                    content=b"\xff" * 100,
                    headers={"content-type": kind, "accept": kind},
                )
                assert answered.is_client_error
        said = capfd.readouterr()
        assert [record.getMessage() for record in logged] == []
    assert said.out + said.err == ""


def test_it_closes_no_handler_of_its_process():
    """Some close the stream that they write to, which may be another program's."""
    closed = []

    class Closed(logging.Handler):
        def close(self) -> None:
            closed.append(self)
            super().close()

    handler = Closed()
    with run_superlink():
        assert closed == []
    handler.close()


def test_plain_http_and_tls_do_not_mix(plain, closed, folder):
    a = load_client_keys(folder / "keys" / "a", "a")
    with pytest.raises(Untrusted):
        Fleet(plain, a.ca, a.key)
    with pytest.raises(Unreachable):
        Fleet(closed)


@pytest.mark.parametrize("off", [20.0, -400.0])
def test_a_clock_that_is_off_is_measured(closed, folder, monkeypatch, off):
    a = load_client_keys(folder / "keys" / "a", "a")

    class Clock(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(tz) + timedelta(seconds=off)

    monkeypatch.setattr("flwr.supernode.node_auth_http_interceptor.now", lambda: Clock.now(UTC))
    monkeypatch.setattr(errors, "datetime", Clock)
    with pytest.raises(Unauthenticated) as caught:
        Fleet(closed, a.ca, a.key)
    assert caught.value.ahead == pytest.approx(off, abs=5)


# --- another user of the server's machine -----------------------------------------------------


@pytest.mark.parametrize("token", ["", "guess"])
def test_nobody_controls_the_superlink_without_its_token(plain, closed, folder, app, token):
    ca = load_server_keys(folder / "keys" / "server").ca
    for address, root in ((plain, None), (closed, ca)):
        with Control(address, root, token) as control:
            calls: list[Callable[[], object]] = [
                control.list_nodes,
                partial(control.start_run, app),
                partial(control.register, "x", b"key"),
                partial(control.unregister, 1),
            ]
            for call in calls:
                with pytest.raises((Unauthenticated, Unreachable)):
                    call()
    assert not (app.parent / "mark").exists()


def test_nobody_takes_a_task_or_reads_a_context_without_the_secret(plain, app):
    run = start_run(plain, app)
    with (
        pytest.raises(Unauthenticated),
        open_server_grid(plain, None, b"guess", run, lambda: None),
    ):
        pass
    request = AcquireTaskRequest(supported_task_types=["flwr-serverapp"]).SerializeToString()
    kind = {"content-type": PROTOBUF_MEDIA_TYPE, "accept": PROTOBUF_MEDIA_TYPE}
    for call in ("acquire-task", "pull-task-input", "pull-messages", "get-nodes", "push-messages"):
        answered = httpx.post(f"http://{plain}/v1/runtime/{call}", content=request, headers=kind)
        assert answered.status_code == httpx.codes.UNAUTHORIZED, (call, answered.text)
    assert not (app.parent / "mark").exists()


def test_the_server_takes_only_the_task_of_its_own_run(plain, app):
    """A foreign run that somebody with the token started stays where it is."""
    start_run(plain, app)
    own = start_run(plain, app)
    with open_server_grid(plain, None, SECRET, own, lambda: None) as grid:
        assert grid.run.run_id == own
    assert not (app.parent / "mark").exists()


# --- signatures ---------------------------------------------------------------------------------


def test_a_grid_signs_what_it_sends(closed, folder, app):
    keys = load_server_keys(folder / "keys" / "server")
    a = load_client_keys(folder / "keys" / "a", "a")
    run = start_run(closed, app, keys.ca)
    verifier = Verifier(a.ca.read_bytes(), "127.0.0.1")
    signer = partial(Signer.load, keys.certificate, keys.key)

    def check(question: Question) -> object:
        payload, signature = read_payload(question.content), read_signature(question.content)
        try:
            verifier.verify(payload, signature, question.run, fleet.node)
        except Refusal as reason:
            return str(reason)
        return question.content

    with (
        open_server_grid(closed, keys.ca, SECRET, run, lambda: None) as inner,
        Fleet(closed, a.ca, a.key) as fleet,
    ):
        grid = ServerGrid(inner, run, lambda: None, signer)
        for sender, accepted in ((grid, True), (inner, False)):
            node = answer(fleet, check)
            reply = ask(sender, fleet.node, QUESTION)
            node.join()
            assert reply.has_content() == accepted


def test_a_tree_for_many_nodes_is_hashed_once(monkeypatch, folder):
    from fedfm.deploy.payload import to_array, to_record
    from fedfm.deploy.server import signed_grid as module

    keys = load_server_keys(folder / "keys" / "server")
    hashed: list[int] = []

    def count(data: bytes) -> str:
        hashed.append(len(data))
        return "x"

    monkeypatch.setattr(module, "digest", count)
    shared = to_array(b"0" * 500)
    questions: list[Any] = [
        SimpleNamespace(
            content=to_record("{}", {"model": shared}),
            metadata=SimpleNamespace(dst_node_id=node, ttl=1.0),
        )
        for node in range(5)
    ]
    grid = ServerGrid(None, 1, lambda: None)  # type: ignore[arg-type]
    grid._sign(Signer.load(keys.certificate, keys.key), questions)
    assert hashed.count(500) == 1
    assert len({read_signature(each.content) for each in questions}) == 5


def test_the_grid_notices_that_a_process_has_ended():
    def watch() -> None:
        raise UserError("the superlink ended")

    grid = ServerGrid(None, 1, watch)  # type: ignore[arg-type]
    for call in (grid.get_nodes, grid.get_node_ids, lambda: grid.pull_messages([])):
        with pytest.raises(UserError, match="ended"):
            call()


@pytest.mark.parametrize("read", [read_public_key, load_key_pair])
def test_a_key_that_is_none_is_named(tmp_path, read):
    (tmp_path / "a.key").write_text("no key")
    with pytest.raises(UserError, match=r"a\.key"):
        read(tmp_path / "a.key")
