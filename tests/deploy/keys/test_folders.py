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
from fedfm.deploy.keys.certificates import (
    list_expiries,
    make_authority,
    make_identity,
    make_server_files,
)
from fedfm.deploy.keys.fingerprints import fingerprint
from fedfm.deploy.keys.folders import (
    add_client,
    load_client_keys,
    load_server_keys,
    make_keys,
    renew_server,
    revoke_client,
)
from tests.cli.tools import Command

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
        "ca.key",
        "hospital-a.key",
        "hospital-b.key",
        "server.key",
    ]
    assert {path.name for path in (keys / "authority").iterdir()} == {"ca.key", "ca.pem"}
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
        (HOSTS, ["authority"], "'authority'"),
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
    monkeypatch.delitem(sys.modules, "fedfm.deploy.keys.certificates", raising=False)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(UserError, match=r"pip install '\.\[flower\]'"):
        make_keys(tmp_path / "keys", HOSTS, CLIENTS, days=30)


# ---- keys that come and go


def public_key(folder: Path, name: str = "own") -> Path:
    """A public key that a client has made by itself."""
    folder.mkdir(exist_ok=True)
    private, public = make_identity(name)
    (folder / f"{name}.key").write_bytes(private)
    (folder / f"{name}.key.pub").write_bytes(public)
    return folder / f"{name}.key.pub"


def test_a_client_is_added_with_a_new_key(keys):
    assert add_client(keys, "hospital-c", None) == keys / "hospital-c"
    known = load_server_keys(keys / "server").clients["hospital-c"].read_bytes()
    private = load_ssh_private_key(
        load_client_keys(keys / "hospital-c", "hospital-c").key.read_bytes(), None
    )
    assert private.public_key() == load_ssh_public_key(known)
    assert (keys / "hospital-c/ca.pem").read_bytes() == (keys / "server/ca.pem").read_bytes()
    test_only_the_owner_can_read_them(keys)


@pytest.mark.parametrize("place", ["", "server"])
def test_a_client_is_added_with_a_key_that_it_made(keys, tmp_path, place):
    """In the folder of all keys, or in the one that the server has."""
    made = public_key(tmp_path / "client")
    assert add_client(keys / place, "hospital-c", made) == keys / "server/hospital-c.pub"
    (key,) = (keys / "server/hospital-c.pub").read_bytes().splitlines()
    assert fingerprint(key) == fingerprint(made.read_bytes())
    assert not (keys / "hospital-c").exists()


def test_a_fingerprint_is_that_of_ssh_keygen():
    key = (
        b"AAAAE2VjZHNhLXNoYTItbmlzdHAzODQAAAAIbmlzdHAzODQAAABhBCub++aeFlnzURsBMfOlqZWoRGwG"
        b"mdf7fik1pvTMpWwhAkYfImWMcJkBEGLSl4vqhe2sudpvc74OgrTD5ord/GheHi6yIHsUXBZDHPWZuDOr"
        b"tOuhTTH3R+3mWLLFkb+PAA=="
    )
    assert fingerprint(b"ecdsa-sha2-nistp384 " + key + b" x\n") == (
        "SHA256:KTf7NS1mb8JPOnv/ROQswQNKK+pf/f/nzD7SLBOkR6c"
    )


def test_what_cannot_be_added(keys, tmp_path):
    made = public_key(tmp_path / "client")
    private, other = made.with_suffix(""), tmp_path / "other.pub"
    other.write_text("ssh-ed25519 AAAA x\n")
    cases: list[tuple[Path, str, Path | None, str]] = [
        (keys, "hospital-a", None, "already"),
        (keys, "authority", None, "'authority'"),
        (keys, "../c", None, r"'\.\./c'"),
        (keys / "server", "c", None, "private key"),
        (keys, "c", private, "private key"),
        (keys, "c", other, "ECDSA"),
        (keys, "c", tmp_path / "nothing", "no such file"),
        (keys, "c", keys / "server/hospital-a.pub", "the key of 'hospital-a'"),
        (tmp_path, "c", made, "holds no keys"),
    ]
    for folder, name, public, pattern in cases:
        with pytest.raises(UserError, match=pattern):
            add_client(folder, name, public)
    assert [*load_server_keys(keys / "server").clients] == CLIENTS


def test_a_revoked_key_does_not_come_back_under_any_name(keys, tmp_path):
    made = public_key(tmp_path / "client")
    add_client(keys, "c", made)
    assert revoke_client(keys, "c") == fingerprint(made.read_bytes())
    assert [*load_server_keys(keys / "server").clients] == CLIENTS
    for name in ("c", "d"):
        with pytest.raises(UserError, match="was revoked"):
            add_client(keys, name, made)
    add_client(keys, "c", public_key(tmp_path / "again"))
    assert [*load_server_keys(keys / "server").clients] == ["c", *CLIENTS]


def test_only_a_client_that_is_there_can_be_revoked(keys):
    with pytest.raises(UserError, match="hospital-a, hospital-b"):
        revoke_client(keys, "hospital-c")


def test_a_renewed_certificate_is_of_the_same_authority(keys):
    """So clients keep their ca.pem; hosts are those of before, unless others are given."""
    before = {path.name: path.read_bytes() for path in (keys / "server").iterdir()}
    renew_server(keys, [], days=90, kept=None)
    after = {path.name: path.read_bytes() for path in (keys / "server").iterdir()}
    assert {name for name in before if before[name] != after[name]} == {"server.pem", "server.key"}
    for name in (*HOSTS, "localhost", "127.0.0.1"):
        verify(keys, name)
    renew_server(keys, ["new.example.org"], days=90, kept=None)
    verify(keys, "new.example.org")
    with pytest.raises(VerificationError):
        verify(keys, HOSTS[0])


def test_the_authority_may_be_elsewhere(keys, tmp_path):
    (keys / "authority").rename(tmp_path / "offline")
    with pytest.raises(UserError, match="--authority"):
        renew_server(keys / "server", [], 90, kept=None)
    assert renew_server(keys / "server", [], 90, kept=tmp_path / "offline") == keys / "server"
    verify(keys, HOSTS[0])


def test_another_authority_cannot_renew(keys, tmp_path):
    make_keys(tmp_path / "others", HOSTS, ["a"], days=30)
    with pytest.raises(UserError, match="is not the key of"):
        renew_server(keys, [], 90, kept=tmp_path / "others/authority")


def test_the_server_s_certificate_does_not_outlive_its_authority(keys, tmp_path):
    authority = make_authority(days=10)
    files = make_server_files(["localhost"], 365, authority)
    (tmp_path / "server").mkdir()
    for name, content in files.items():
        (tmp_path / "server" / name).write_bytes(content)
    ca, server = list_expiries(tmp_path / "server")
    assert ca.expires == server.expires


def test_an_expiring_certificate_is_announced_and_an_expired_one_refused(keys):
    now = datetime.now(UTC)
    ca, server = list_expiries(keys / "server")
    assert (ca.file.name, server.file.name) == ("ca.pem", "server.pem")
    assert not ca.is_due(now)
    assert server.is_due(now)  # made for 30 days
    server.require_valid(now)
    with pytest.raises(UserError, match=r"fedfm keys renew .*server"):
        server.require_valid(now + timedelta(days=31))
    with pytest.raises(UserError, match="fedfm keys make"):
        ca.require_valid(now + timedelta(days=3651))


def test_the_commands(command: Command, tmp_path):
    """The old call makes keys, too; every command says what it did."""
    made = ("all", "--server", "localhost", "--client", "a")
    assert command("keys", *made).code == 0
    assert command("keys", "make", "more", *made[1:]).code == 0
    assert command("keys", "--server", "localhost", "--client", "a", "third").code == 0
    key = public_key(tmp_path / "client")
    answer = command("keys", "add", "all", "b", "--public", key)
    assert (answer.code, answer.err) == (0, "")
    assert fingerprint(key.read_bytes()) in answer.out
    assert fingerprint(key.read_bytes()) in command("keys", "revoke", "all", "b").out
    assert command("keys", "revoke", "all", "b").code == 2
    assert command("keys", "renew", "all", "--days", "3").code == 0
    assert list_expiries(tmp_path / "all/server")[1].is_due(datetime.now(UTC))
    assert {each.name for each in tmp_path.iterdir()} >= {"all", "more", "third"}
