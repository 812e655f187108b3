"""Somebody without a key attacks the proxy while a federation goes on, with real processes."""

import asyncio
import resource
import socket
import ssl
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Event, Thread

import httpx
import pytest

from fedfm.deploy.programs.addresses import LOOPBACK, Address, free_address, wait_until_listening
from fedfm.deploy.proxy.client_keys import KEY
from fedfm.deploy.proxy.limits import MIB
from tests.deploy.processes.conftest import CLIENTS, Machine

ATTACKERS = 1000
HEAD = b"POST /v1/fleet/push-object HTTP/1.1\r\nhost: here\r\n"
SAID = (b"", b"\x16\x03\x01\x02")
"""Before TLS: nothing, and half of a handshake."""
SAID_IN_TLS = (b"", b"POST /v1/fl", HEAD, HEAD + b"content-length: 60000\r\n\r\nhalf")
"""After the handshake: half a request."""


@pytest.fixture(autouse=True)
def many_files() -> Iterator[None]:
    """Let this process open as many files as the attack needs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def dial(address: Address, number: int, tls: ssl.SSLContext) -> socket.socket:
    """One connection that says half of something."""
    made = socket.create_connection((address.host, address.port), timeout=10)
    if number % 2:
        made.sendall(SAID[number // 2 % len(SAID)])
        return made
    secure = tls.wrap_socket(made, server_hostname=LOOPBACK)
    secure.sendall(SAID_IN_TLS[number // 2 % len(SAID_IN_TLS)])
    return secure


@contextmanager
def attack(address: Address, ca: Path) -> Iterator[list[socket.socket]]:
    """A thousand connections that are held open, and some more every second."""
    tls, held, over = ssl.create_default_context(cafile=str(ca)), list[socket.socket](), Event()

    def redial() -> None:
        for number in range(100_000):
            with suppress(OSError):
                held.append(dial(address, number, tls))
            if number >= ATTACKERS:
                held.pop(0).close()
                if over.wait(0.02):
                    return

    thread = Thread(target=redial)
    thread.start()
    while len(held) < ATTACKERS // 2 and thread.is_alive():
        time.sleep(0.05)
    try:
        yield held
    finally:
        over.set()
        thread.join()
        for each in held:
            each.close()


def memory(process: int) -> int:
    """The most megabytes that a process has used so far."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith("VmHWM"))
    return int(line.split()[1]) // 1024


def find_proxy(numbers: list[int]) -> int:
    """The proxy among these processes."""
    (found,) = (
        number
        for number in numbers
        if b"fedfm.deploy.proxy.proxy" in Path(f"/proc/{number}/cmdline").read_bytes()
    )
    return found


def test_a_federation_goes_on_beside_a_thousand_half_finished_requests(deployment, points):
    run = deployment(*points, "method=scaffold", "training.rounds=3")
    keys = run.folder / "keys"
    run.make_keys(keys, *(f"c{k}" for k in range(CLIENTS)))
    server = run.serve("--keys", keys / "server")
    wait_until_listening(server.process, run.address, server.said)
    proxy = find_proxy(server.tree)
    with attack(run.address, keys / "server" / "ca.pem"):
        for k in range(CLIENTS):
            run.join(k, "--keys", keys / f"c{k}")
        server.wait_until(lambda: run.checkpoint() == 2)
        assert memory(proxy) < 400
    assert server.wait() == 0
    run.assert_simulated()


async def answer_slowly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A superlink that does not read large requests, and answers small ones."""
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            size = int(head.partition(b"content-length: ")[2].split()[0])
            if size > MIB:
                await asyncio.sleep(600)
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size)
            writer.write(await reader.readexactly(size))
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.transport.abort()


@contextmanager
def slow_superlink() -> Iterator[Address]:
    """At an address of this machine."""
    address, loop, over = free_address(), asyncio.new_event_loop(), asyncio.Event()

    async def serve() -> None:
        async with await asyncio.start_server(answer_slowly, address.host, address.port):
            await over.wait()
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            await asyncio.sleep(0.1)

    thread = Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    try:
        yield address
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()
        loop.close()


def test_large_bodies_do_not_stay_in_the_proxy(tmp_path):
    """Of clients: strangers may not send them."""
    outside, machine = free_address(), Machine(tmp_path)
    with ExitStack() as stack:
        inside = stack.enter_context(slow_superlink())
        program = (sys.executable, "-m", "fedfm.deploy.proxy.proxy", outside, inside, tmp_path)
        proxy = machine.start("proxy", *program)
        stack.callback(proxy.kill)
        wait_until_listening(proxy.process, outside, proxy.said)
        before = memory(proxy.process.pid)
        for number in range(15):
            sender = stack.enter_context(socket.create_connection((outside.host, outside.port)))
            name = b"%s: %d\r\n" % (KEY.encode(), number)
            sender.sendall(HEAD + name + b"content-length: %d\r\n\r\n" % (16 * MIB))
            sender.settimeout(1.0)
            with suppress(OSError):
                sender.sendall(bytes(15 * MIB))
            answer = httpx.post(f"http://{outside}/v1/fleet/get-run", content=b"me")
            assert answer.content == b"me"
        grown = memory(proxy.process.pid) - before
        print(f"the proxy has grown by {grown} MB from {before} MB")
        assert grown < 100
