"""The proxy: what it lets through, and who holds it up for how long."""

import asyncio
import subprocess
import sys
import tracemalloc
from collections.abc import AsyncIterator, Coroutine, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from fedfm.deploy.proxy.client_keys import KEY, SIGNATURE, ClientKeysIndex
from fedfm.deploy.proxy.limits import KIB, MIB, Limits, MessageSizes
from tests.deploy.proxy.proxies import (
    CALL,
    RunningProxy,
    Superlink,
    closing,
    new_keys,
    run_proxy,
    sign,
    to_stream,
)

HEAD = b"POST /v1/fleet/push-object HTTP/1.1\r\nhost: here\r\n"
ATTACKERS = 60
SMALL = Limits(connections=36, address=24, head=30.0)
"""Attackers are many more than the limits; they are cut by number, not by time."""


@pytest.fixture(scope="module")
def keys(tmp_path_factory) -> Path:
    return new_keys(tmp_path_factory.mktemp("keys") / "all")


@pytest.fixture(autouse=True)
def no_failures(caplog) -> Iterator[None]:
    """Whatever callers do, the proxy has no error of its own."""
    yield
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(work, 60))


# --- what is let through --------------------------------------------------------------------------


def ask(path: str = CALL, content: bytes = b"", **options: Any) -> httpx.Response:
    async def work() -> httpx.Response:
        async with run_proxy(**options) as here:
            return await here.post(path, content, {SIGNATURE: "mine"})

    answer = run(work())
    assert isinstance(answer, httpx.Response)
    return answer


def test_the_proxy_passes_on_what_clients_say():
    answer = ask(CALL, b"\0\1")
    assert (answer.status_code, answer.content) == (200, b"\0\1")
    assert answer.headers["said"] == "mine"


@pytest.mark.parametrize(
    "path",
    [
        "/v1/control/start-run",
        "/v1/control/register-node",
        "/v1/runtime/acquire-task",
        "/v1/fleet/../control/start-run",
        "/v1/fleet/..%2fcontrol%2fstart-run",
        "/v1/fleet/%2e%2e",
        "/v1/fleet/",
        "/docs",
        "/openapi.json",
        "/health",
    ],
)
def test_the_proxy_lets_nothing_else_through(path):
    assert ask(path).status_code == 404


def test_a_client_may_try_again_while_the_superlink_is_away():
    def away(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("away")

    assert ask(transport=Superlink(away)).status_code == 503


@pytest.mark.parametrize(
    ("opening", "status"),
    [
        (b"GET /v1/fleet/get-run HTTP/1.1\r\nhost: here\r\n\r\n", b"405"),
        (HEAD + b"\r\n", b"411"),
        (HEAD + b"transfer-encoding: chunked\r\n\r\n", b"411"),
        (HEAD + b"content-length: 99999999999\r\n\r\n", b"413"),
        (HEAD + b"content-length: 0\r\nflwr-signature: \xff\r\n\r\n", b"400"),
        (HEAD + b"content-length: 0\r\nx: " + b"x" * 20_000 + b"\r\n\r\n", b"431"),
        (HEAD + b"x: y\r\n" * 5_000 + b"content-length: 0\r\n\r\n", b"431"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(100), b"404"),
        (b"CONNECT 127.0.0.1:22 HTTP/1.1\r\nhost: here\r\n\r\n", b"404"),
        (b"OPTIONS * HTTP/1.1\r\nhost: here\r\n\r\n", b"404"),
        (b"POST http://inside/v1/control/start-run HTTP/1.1\r\nhost: here\r\n\r\n", b"404"),
        (b"POST //v1/fleet/pull-messages HTTP/1.1\r\nhost: here\r\n\r\n", b"404"),
        (b"POST /v1/fleet/pull-messages;/../x HTTP/1.1\r\nhost: here\r\n\r\n", b"404"),
        (HEAD + b"content-length: 0\r\ncontent-length: 5\r\n\r\n", b""),
        (HEAD + b"content-length: +5\r\n\r\nhello", b""),
        (HEAD + b"content-length: " + b"9" * 5000 + b"\r\n\r\n", b""),
        (HEAD + b"content-length : 5\r\n\r\nhello", b""),
        (HEAD + b"x: a\x00b\r\n\r\n", b""),
        (bytes(range(256)) * 10, b""),
    ],
)
def test_requests_of_another_form_are_refused_before_they_are_read(opening, status):
    reached: list[httpx.Request] = []

    def count(request: httpx.Request) -> httpx.Response:
        reached.append(request)
        return httpx.Response(200)

    async def work() -> bytes:
        async with run_proxy(Limits(linger=0.1), Superlink(count)) as here:
            reader, writer = await asyncio.open_connection(*here.address)
            writer.write(opening)
            line = await reader.readline()
            writer.close()
            return line

    line = run(work())
    assert line.split(b" ")[1:2] == ([status] if status else [])
    assert reached == []


def test_only_the_headers_of_a_call_are_passed_on():
    """Nothing that would make the superlink do more than answer the call, in any encoding."""
    extra = b"upgrade: h2c\r\nexpect: 100-continue\r\nx-forwarded-for: \xff\r\nte: trailers\r\n"
    head = HEAD + extra + b"content-length: 0\r\nflwr-timestamp: now\r\n\r\n"
    reached: list[httpx.Request] = []

    def keep(request: httpx.Request) -> httpx.Response:
        reached.append(request)
        return httpx.Response(200)

    async def work() -> bytes:
        async with run_proxy(transport=Superlink(keep)) as here:
            reader, writer = await asyncio.open_connection(*here.address)
            writer.write(head)
            line = await reader.readline()
            writer.close()
            return line

    assert b"200" in run(work())
    (request,) = reached
    assert request.headers["flwr-timestamp"] == "now"
    assert not {"upgrade", "expect", "te", "x-forwarded-for"} & request.headers.keys()


def test_pipelined_requests_are_answered_in_turn_and_not_read_ahead():
    """A caller that reads no answer is not served for ever: what it sends waits in its socket."""
    count = 20_000
    answered = 0

    def answer(request: httpx.Request) -> httpx.Response:
        nonlocal answered
        answered += 1
        return httpx.Response(200, content=bytes(1000))

    async def work() -> None:
        async with run_proxy(Limits(pause=0.3), Superlink(answer)) as here:
            reader, writer = await asyncio.open_connection(*here.address, limit=1000)
            writer.write((HEAD + b"content-length: 0\r\n\r\n") * count)
            await here.until_open(1)
            reader._transport.pause_reading()  # type: ignore[attr-defined]
            await here.until_open(0)
            writer.close()

    run(work())
    assert 0 < answered < count


def test_a_connection_serves_one_request_after_the_other():
    async def work() -> int:
        async with run_proxy() as here, here.caller() as client:
            for number in range(5):
                answer = await client.post(CALL, content=bytes([number]))
                assert answer.content == bytes([number])
            assert (await client.post("/elsewhere")).status_code == 404
            return len(here.proxy.connections.open)

    assert run(work()) in (1, 2)


# --- who is a client ------------------------------------------------------------------------------


def test_a_client_is_known_by_its_signature(keys):
    client_keys = ClientKeysIndex(keys / "server")
    good, other = sign(keys, "a"), sign(keys, "b")
    assert client_keys.recognise(good, "x") == "a"
    assert client_keys.recognise(other, "x") == "b"
    assert client_keys.recognise(good | {SIGNATURE: other[SIGNATURE]}, "x") is None
    assert client_keys.recognise(good | {SIGNATURE: "?"}, "x") is None
    assert client_keys.recognise({}, "x") is None
    assert ClientKeysIndex(None).recognise({}, "10.0.0.7") == "10.0.0.7"
    assert ClientKeysIndex(None).recognise(good, "10.0.0.7") == good[KEY]


def test_keys_come_and_go(tmp_path, monkeypatch):
    monkeypatch.setattr("fedfm.deploy.proxy.client_keys.FRESH", 0.0)
    keys = new_keys(tmp_path / "keys", ("a", "b"))
    client_keys, public = ClientKeysIndex(keys / "server"), keys / "server/b.pub"
    kept = public.read_bytes()
    public.unlink()
    assert client_keys.recognise(sign(keys, "b"), "x") is None
    public.write_bytes(kept)
    (keys / "server/odd.pub").write_text("no key")
    assert client_keys.recognise(sign(keys, "b"), "x") == "b"


def test_only_clients_send_much(keys):
    """A stranger is refused after the head of its request."""

    async def work() -> list[int]:
        async with run_proxy(keys=keys) as here:
            large = bytes(64 * KIB + 1)
            heads: list[dict[str, str]] = [{}, sign(keys, "a")]
            answers = [await here.post(CALL, large, head) for head in heads]
            answers.append(await here.post(CALL, bytes(64 * KIB)))
            answers.append(await here.post(CALL, bytes(16 * MIB + 1), sign(keys, "a")))
            return [answer.status_code for answer in answers]

    assert run(work()) == [413, 200, 200, 413]


# --- connections ----------------------------------------------------------------------------------


async def hold(here: RunningProxy, opening: bytes, tls: bool) -> list[asyncio.StreamWriter]:
    return [await here.dial(opening, tls) for _ in range(ATTACKERS)]


@pytest.mark.parametrize(
    ("opening", "tls"),
    [
        (b"", False),  # no TLS handshake
        (b"\x16\x03\x01", False),  # half of one
        (b"", True),  # no request
        (b"POST /v1/fleet/pull-mess", True),  # half a head
        (HEAD + b"content-length: 65536\r\n\r\nhalf", True),  # half a body
    ],
    ids=["silent", "half a handshake", "no request", "half a head", "half a body"],
)
def test_half_finished_requests_do_not_hold_up_a_client(keys, opening, tls):
    """They are held open all the while, beside a client from the same address."""

    async def work() -> None:
        async with run_proxy(SMALL, keys=keys) as here, here.caller() as client:
            with closing(await hold(here, opening, tls)):
                for number in range(3):
                    answer = await client.post(
                        CALL, content=bytes([number]), headers=sign(keys, "a")
                    )
                    assert answer.content == bytes([number])
                    more = [await here.dial(opening, tls) for _ in range(12)]
                    with closing(more):
                        assert len(here.proxy.connections.open) <= SMALL.address
            await here.until_open(1)

    run(work())


def test_a_stranger_has_little_time(keys):
    async def work() -> None:
        async with run_proxy(Limits(head=0.2), keys=keys) as here:
            openings = (b"", b"\x16\x03\x01")
            with closing([await here.dial(each) for each in openings]):
                await here.until_open(2)
                await here.until_open(0)
            with closing([await here.dial(HEAD, tls=True)]):
                await here.until_open(0)

    run(work())


def test_clients_behind_one_address_share_its_connections_and_others_have_theirs():
    """Without keys everybody is a client, and no client is cut for another."""

    async def work() -> None:
        limits = Limits(connections=7, address=4, client=4)
        async with run_proxy(limits) as here:
            head = HEAD + b"content-length: 1\r\n\r\n"
            held = [await here.dial(head) for _ in range(4)]
            await here.until_open(4)
            with closing(held):
                await asyncio.sleep(0.05)
                with pytest.raises(httpx.TransportError):
                    await here.post()
                other = httpx.AsyncHTTPTransport(local_address="127.0.0.2")
                async with httpx.AsyncClient(transport=other) as client:
                    answer = await client.post(f"http://{here.address}{CALL}")
                    assert answer.status_code == 200
            await here.until_open(0)
            assert (await here.post()).status_code == 200

    run(work())


def test_a_client_has_a_few_connections(keys):
    async def work() -> None:
        async with run_proxy(Limits(client=2), keys=keys) as here:
            callers = [httpx.AsyncClient(verify=here.tls or True) for _ in range(5)]
            for caller in callers:
                answer = await caller.post(f"https://{here.address}{CALL}", headers=sign(keys, "a"))
                assert answer.status_code == 200
            await here.until_open(2)
            assert (await here.post(headers=sign(keys, "b"))).status_code == 200
            for caller in callers:
                await caller.aclose()

    run(work())


# --- bodies ---------------------------------------------------------------------------------------


class Deaf(httpx.AsyncBaseTransport):
    """A superlink that reads the first piece of a request, and no more until it is told to."""

    def __init__(self) -> None:
        self.hears = asyncio.Event()
        self.begun = self.read = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.begun += 1
        assert isinstance(request.stream, httpx.AsyncByteStream)
        async for piece in request.stream:
            self.read += len(piece)
            await self.hears.wait()
        return to_stream(httpx.Response(200))


def test_requests_pass_through_and_are_not_held():
    """Whatever callers send while the superlink is slow, the proxy stays small."""
    size, callers = 16 * MIB, 4

    async def send(writer: asyncio.StreamWriter, body: memoryview) -> None:
        for start in range(0, size, MIB):
            writer.write(body[start : start + MIB])
            await writer.drain()

    async def work() -> tuple[int, int]:
        deaf = Deaf()
        async with run_proxy(transport=deaf) as here:
            head = HEAD + f"content-length: {size}\r\n\r\n".encode()
            dialled = [await asyncio.open_connection(*here.address) for _ in range(callers)]
            body = memoryview(bytes(size))
            tracemalloc.start()
            with closing(writer for _, writer in dialled):
                for _, writer in dialled:
                    writer.write(head)
                sending = [asyncio.create_task(send(writer, body)) for _, writer in dialled]
                while deaf.begun < callers:
                    await asyncio.sleep(0.01)
                await asyncio.sleep(0.3)
                peak = tracemalloc.get_traced_memory()[1]
                deaf.hears.set()
                for task, (reader, _) in zip(sending, dialled, strict=True):
                    await task
                    assert b"200" in await reader.readline()
            return peak, deaf.read

    peak, read = run(work())
    tracemalloc.stop()
    assert read == callers * size
    assert peak < size


def test_a_body_that_does_not_come_is_given_up():
    async def work() -> bytes:
        async with run_proxy(Limits(pause=0.1, linger=0.1)) as here:
            reader, writer = await asyncio.open_connection(*here.address)
            writer.write(HEAD + b"content-length: 1000000\r\n\r\nsome")
            line = await reader.readline()
            await here.until_open(0)
            assert not +here.proxy.memory.held
            writer.close()
            return line

    assert b"408" in run(work())


def test_a_body_that_drips_is_given_up():
    """A byte now and then is no progress."""

    async def drip(writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(b"x")
            await asyncio.sleep(0.02)

    async def work() -> bytes:
        async with run_proxy(Limits(pause=0.2, rate=16 * MIB, linger=0.1)) as here:
            reader, writer = await asyncio.open_connection(*here.address)
            writer.write(HEAD + b"content-length: 1000000\r\n\r\n")
            dripping = asyncio.create_task(drip(writer))
            line = await reader.readline()
            dripping.cancel()
            writer.close()
            return line

    assert b"408" in run(work())


def test_the_bytes_under_way_are_limited_in_total():
    """Over the limit a request waits for its turn, and is sent away if none comes."""

    async def work() -> None:
        limits = Limits(per_client=3000, total=3000, wait=0.1)
        async with run_proxy(limits) as here:
            head = HEAD + b"content-length: 2000\r\n\r\n"
            with closing([await here.dial(head)]):
                while not here.proxy.memory.held:
                    await asyncio.sleep(0.01)
                assert (await here.post(content=bytes(1001))).status_code == 503
                assert (await here.post(content=bytes(1000))).status_code == 200
            await here.until_open(0)
            assert (await here.post(content=bytes(1001))).status_code == 200

    run(work())


def test_a_message_over_the_limit_stops_at_the_proxy(tmp_path):
    """The superlink gets no more than the server expects; the next message counts anew."""
    reached = 0

    def store(request: httpx.Request) -> httpx.Response:
        nonlocal reached
        reached += len(request.content)
        return httpx.Response(200)

    async def work() -> None:
        async with run_proxy(transport=Superlink(store), message_limit=tmp_path / "limit") as here:
            (tmp_path / "limit").write_text(f"{4 * MIB}\n")
            push, piece = "/v1/fleet/push-object", bytes(MIB)
            statuses = [(await here.post(push, piece)).status_code for _ in range(20)]
            assert statuses == [200] * 5 + [413] * 15
            assert (await here.post("/v1/fleet/push-messages")).status_code == 200
            assert (await here.post(push, piece)).status_code == 200

    run(work())
    assert reached == 6 * MIB


@pytest.mark.parametrize(("written", "most"), [(None, 2), ("", 2), ("1048576", 1), ("9" * 9, 3)])
def test_the_server_says_how_large_a_message_is(tmp_path, written, most):
    """No more than the proxy's own limit; before the server has said it, not much."""
    file, limits = tmp_path / "limit", Limits(message=3 * MIB, early=2 * MIB)
    if written is not None:
        file.write_text(written)
    assert MessageSizes(limits, file).limit == most * MIB * 17 // 16 + MIB
    assert MessageSizes(limits, None).limit == 3 * MIB * 17 // 16 + MIB


async def _pieces() -> AsyncIterator[bytes]:
    yield b"x"


def test_a_body_of_unknown_size_is_refused():
    async def work() -> int:
        async with run_proxy() as here, here.caller() as client:
            return (await client.post(CALL, content=_pieces())).status_code

    assert run(work()) == 411


def test_the_proxy_is_small():
    """It does without PyTorch, which takes five times its memory."""
    code = "import fedfm.deploy.proxy.proxy, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
