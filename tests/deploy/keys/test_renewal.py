"""A renewed certificate: in use without a restart, and only if it can be used."""

import asyncio
import logging
import shutil
import socket
import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from fedfm.core.errors import UserError
from fedfm.deploy.flower.control import Control
from fedfm.deploy.flower.fleet import Fleet
from fedfm.deploy.flower.keys import read_public_key
from fedfm.deploy.keys import certificates, renewal
from fedfm.deploy.keys.folders import (
    ServerKeys,
    load_client_keys,
    load_server_keys,
    make_keys,
)
from fedfm.deploy.keys.renewal import LOOK, Renewed
from fedfm.deploy.payload import Payload
from fedfm.deploy.programs.addresses import LOOPBACK, Address
from fedfm.deploy.signatures import Digests, Signer, Verifier
from tests.cli.tools import Command
from tests.deploy.proxy.proxies import run_proxy, sign
from tests.deploy.superlink import TOKEN, run_superlink

Renew = Callable[..., None]


@pytest.fixture
def keys(tmp_path) -> Path:
    make_keys(tmp_path / "keys", [LOOPBACK], ["a"], days=30)
    return tmp_path / "keys"


@pytest.fixture
def server(keys) -> ServerKeys:
    return load_server_keys(keys / "server")


@pytest.fixture
def renew(keys, command: Command) -> Renew:
    """Renew the certificate as an operator does."""

    def run(*options: object) -> None:
        assert command("keys", "renew", keys, *options).code == 0

    return run


@pytest.fixture
def no_wait(monkeypatch) -> None:
    """Files are looked at for every connection."""
    monkeypatch.setattr(renewal, "LOOK", 0.0)


def serial(pem: bytes) -> int:
    return x509.load_pem_x509_certificate(pem).serial_number


def shown(address: Address, ca: Path) -> int:
    """The serial number of the certificate that a server shows on a new, verified connection."""
    context = ssl.create_default_context(cafile=str(ca))
    with (
        socket.create_connection(address, timeout=10) as plain,
        context.wrap_socket(plain, server_hostname=address.host) as secure,
    ):
        certificate = secure.getpeercert(binary_form=True)
    assert certificate
    return x509.load_der_x509_certificate(certificate).serial_number


class Clock:
    """A clock that passes a second whenever it is looked at."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += LOOK
        return self.now


def watch(server: ServerKeys) -> tuple[Renewed[int], list[str]]:
    """The serial number in use, and the reasons why a newer one is not."""
    refused = list[str]()

    def read(certificate: Path, key: Path) -> int:
        return serial(certificate.read_bytes())

    return Renewed(server.files, read, lambda _, reason: refused.append(reason), Clock()), refused


# ---- real connections


@pytest.mark.usefixtures("no_wait")
def test_the_proxy_shows_a_renewed_certificate_to_new_connections(keys, server, renew):
    """A connection that is open goes on, and new ones see the new certificate."""

    async def work() -> None:
        async with run_proxy(keys=keys) as here, here.caller() as early:
            old = await asyncio.to_thread(shown, here.address, server.ca)
            assert old == serial(server.certificate.read_bytes())
            signed = sign(keys, "a")
            await early.post("/v1/fleet/pull-messages", headers=signed)
            await asyncio.to_thread(renew)
            new = await asyncio.to_thread(shown, here.address, server.ca)
            assert new == serial(server.certificate.read_bytes()) != old
            answer = await early.post("/v1/fleet/pull-messages", headers=signed)
            assert answer.status_code == 200

    asyncio.run(asyncio.wait_for(work(), 60))


@pytest.mark.usefixtures("no_wait")
def test_the_superlink_shows_a_renewed_certificate_to_new_connections(keys, server, renew):
    client = load_client_keys(keys / "a", "a")
    with (
        run_superlink(server) as address,
        Control(str(address), server.ca, TOKEN) as control,
    ):
        control.register("a", read_public_key(server.clients["a"]))
        with Fleet(str(address), client.ca, client.key) as fleet:
            old = shown(address, server.ca)
            renew()
            assert shown(address, server.ca) == serial(server.certificate.read_bytes()) != old
            assert fleet.receive() is None  # the client notices nothing
        with Fleet(str(address), client.ca, client.key):
            pass


@pytest.mark.usefixtures("no_wait")
@pytest.mark.parametrize("damage", ["", "no certificate"])
def test_a_broken_file_leaves_the_old_certificate_in_use(keys, server, caplog, damage):
    caplog.set_level(logging.WARNING)

    async def work() -> None:
        async with run_proxy(keys=keys) as here:
            old = await asyncio.to_thread(shown, here.address, server.ca)
            server.certificate.write_text(damage)
            for _ in range(3):
                assert await asyncio.to_thread(shown, here.address, server.ca) == old

    asyncio.run(asyncio.wait_for(work(), 60))
    (line,) = [record.getMessage() for record in caplog.records if record.name == renewal.__name__]
    assert "stays in use" in line
    assert "\n" not in line


@pytest.mark.usefixtures("no_wait")
def test_questions_are_signed_with_the_renewed_key(server, renew):
    """A client accepts what was signed before and afterwards, with the same ca.pem."""
    question, signer = Payload("{}", {}), Renewed(server.files, Signer.load)
    verifier = Verifier(server.ca.read_bytes(), LOOPBACK)
    used = []
    for _ in range(2):
        signature = signer().sign(Digests.of(question), 1, 2, 60.0)
        verifier.verify(question, signature, 1, 2)
        used.append(serial(signature.certificates))
        renew()
    assert used[0] != used[1]


# ---- what is used, and what is not


def test_a_renewed_certificate_is_used(server, renew):
    newest, refused = watch(server)
    old = newest()
    renew("--days", 90)
    assert newest() == serial(server.certificate.read_bytes()) != old
    assert refused == []


def test_files_are_looked_at_once_a_second(server, renew):
    newest = Renewed(
        server.files, lambda certificate, key: certificate.read_bytes(), clock=lambda: 0
    )
    old = newest()
    renew()
    assert newest() == old


def test_a_certificate_that_is_copied_before_its_key_is_used_with_it(server, renew, tmp_path):
    """Copying two files takes a moment, which nobody is told of."""
    newest, refused = watch(server)
    old, key = newest(), server.key.read_bytes()
    renew()
    new = server.key.read_bytes()
    server.key.write_bytes(key)
    assert newest() == old
    assert refused == []
    server.key.write_bytes(new)
    assert newest() == serial(server.certificate.read_bytes())
    assert refused == []


def test_a_certificate_without_its_key_is_refused_once(server, renew):
    newest, refused = watch(server)
    old, key = newest(), server.key.read_bytes()
    renew()
    server.key.write_bytes(key)
    assert [newest() for _ in range(4)] == [old] * 4
    (reason,) = refused
    assert "server.key" in reason


def test_a_certificate_of_another_authority_is_refused(server, tmp_path):
    """Clients would not trust it; a new authority needs new files at every client."""
    newest, refused = watch(server)
    old = newest()
    make_keys(tmp_path / "others", [LOOPBACK], ["a"], days=30)
    for file in server.files:
        shutil.copy(tmp_path / "others/server" / file.name, file)
    assert [newest() for _ in range(3)] == [old] * 3
    (reason,) = refused
    assert "ca.pem" in reason


def test_a_certificate_that_has_expired_is_refused(server, renew, monkeypatch):
    newest, refused = watch(server)
    old = newest()
    monkeypatch.setattr(certificates, "BACKDATED", timedelta(days=9))
    now = datetime.now(UTC)

    class Past(datetime):
        @classmethod
        def now(cls, tz=None):
            return now - timedelta(days=5)

    monkeypatch.setattr(certificates, "datetime", Past)
    renew("--days", 1)
    assert [newest() for _ in range(3)] == [old] * 3
    assert len(refused) == 1


def test_a_file_that_is_gone_is_named(server):
    newest, refused = watch(server)
    old = newest()
    server.certificate.unlink()
    assert [newest() for _ in range(3)] == [old] * 3
    (reason,) = refused
    assert "server.pem" in reason


def test_the_old_files_are_no_problem(server, renew):
    newest, refused = watch(server)
    old, files = newest(), [file.read_bytes() for file in server.files]
    server.certificate.write_text("broken")
    newest()
    for file, content in zip(server.files, files, strict=True):
        file.write_bytes(content)
    assert newest() == old
    renew()
    assert newest() != old
    assert refused == []


def test_files_that_cannot_be_used_at_the_start_are_an_error(server):
    server.key.write_text("no key")
    with pytest.raises(UserError, match=r"server\.key"):
        Renewed(server.files, Signer.load)
