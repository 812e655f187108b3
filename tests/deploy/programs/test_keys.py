"""Keys of a test federation: what TLS and Flower accept, and nobody else can read."""

import re
import sys
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from fedfm.core.errors import UserError
from fedfm.deploy.programs.keys import load_client_keys, load_server_keys, make_keys

HOSTS, CLIENTS = ["fl.example.org", "192.0.2.7"], ["hospital-a", "hospital-b"]


@pytest.fixture
def keys(tmp_path) -> Path:
    make_keys(tmp_path / "keys", HOSTS, CLIENTS, days=30)
    return tmp_path / "keys"


def verify(keys: Path, name: str) -> None:
    """Whether a client that asks for `name` takes the server's certificate."""
    server = load_server_keys(keys / "server")
    store = Store(x509.load_pem_x509_certificates(server.ca.read_bytes()))
    try:
        subject: x509.DNSName | x509.IPAddress = x509.IPAddress(ip_address(name))
    except ValueError:
        subject = x509.DNSName(name)
    certificate = x509.load_pem_x509_certificate(server.certificate.read_bytes())
    PolicyBuilder().store(store).build_server_verifier(subject).verify(certificate, [])


@pytest.mark.parametrize("name", [*HOSTS, "localhost", "127.0.0.1"])
def test_the_certificate_is_for_the_server_and_for_loopback(keys, name):
    verify(keys, name)


@pytest.mark.parametrize("name", ["example.org", "192.0.2.8"])
def test_the_certificate_is_for_nobody_else(keys, name):
    with pytest.raises(VerificationError):
        verify(keys, name)


def test_the_certificate_ends_when_it_was_told_to(keys):
    pem = load_server_keys(keys / "server").certificate.read_bytes()
    left = x509.load_pem_x509_certificate(pem).not_valid_after_utc - datetime.now(UTC)
    assert timedelta(days=29) < left <= timedelta(days=30)


def test_a_client_has_the_private_key_of_the_public_key_that_the_server_has(keys):
    known = load_server_keys(keys / "server").clients
    assert list(known) == CLIENTS
    for name in CLIENTS:
        private = load_ssh_private_key(load_client_keys(keys / name, name).key.read_bytes(), None)
        public = load_ssh_public_key(known[name].read_bytes())
        assert isinstance(private, ec.EllipticCurvePrivateKey)
        assert isinstance(private.curve, ec.SECP384R1)
        assert private.public_key() == public


def test_only_the_owner_can_read_them(keys):
    for path in [keys, *keys.rglob("*")]:
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600)


def test_a_machine_gets_no_private_key_of_another(keys):
    assert sorted(path.name for path in keys.rglob("*.key")) == [
        "hospital-a.key",
        "hospital-b.key",
        "server.key",
    ]
    assert {path.name for path in (keys / "hospital-a").iterdir()} == {"ca.pem", "hospital-a.key"}


def test_keys_are_never_overwritten(keys):
    before = {path: path.read_bytes() for path in keys.rglob("*") if path.is_file()}
    with pytest.raises(UserError, match=re.escape(str(keys))):
        make_keys(keys, HOSTS, CLIENTS, days=30)
    assert all(path.read_bytes() == content for path, content in before.items())


@pytest.mark.parametrize(
    ("hosts", "clients", "pattern"),
    [
        (HOSTS, ["a", "a"], "same name"),
        (HOSTS, ["server"], "'server'"),
        (HOSTS, ["../a"], r"'\.\./a'"),
        (["fl.example.org:9092/x"], ["a"], r"--server fl\.example\.org:9092/x"),
        (["-rf"], ["a"], "--server -rf"),
    ],
)
def test_names_that_cannot_be(tmp_path, hosts, clients, pattern):
    with pytest.raises(UserError, match=pattern):
        make_keys(tmp_path / "keys", hosts, clients, days=30)
    assert not (tmp_path / "keys").exists()


def test_what_is_missing_is_named(keys):
    with pytest.raises(UserError, match=r": hospital-b\.key;"):
        load_client_keys(keys / "hospital-a", "hospital-b")
    with pytest.raises(UserError, match=r": server\.pem, server\.key;"):
        load_server_keys(keys / "hospital-a")
    for public in (keys / "server").glob("*.pub"):
        public.unlink()
    with pytest.raises(UserError, match=r"NAME\.pub"):
        load_server_keys(keys / "server")


def test_without_the_extra_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "fedfm.deploy.programs.certificates", raising=False)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(UserError, match=r"pip install '\.\[flower\]'"):
        make_keys(tmp_path / "keys", HOSTS, CLIENTS, days=30)
