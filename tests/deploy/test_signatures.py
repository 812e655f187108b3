"""Signed questions: everything but the server's own fresh question to this node is refused."""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization as to
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from fedfm.core.errors import UserError
from fedfm.deploy.errors import Refusal
from fedfm.deploy.keys.certificates import make_server_files
from fedfm.deploy.payload import Payload
from fedfm.deploy.signatures import TOLERANCE, Digests, PrivateKey, Signer, Verifier

QUESTION = Payload('{"token":"a","kind":"train","number":3}', {"model": b"123", "down": b"45"})
RUN, NODE, TERM, HOST = 7, 11, 60.0, "fl.example.org"


def make_server(folder: Path, hosts: tuple[str, ...] = (HOST, "127.0.0.1")) -> tuple[Signer, bytes]:
    """A server with an authority of its own."""
    folder.mkdir()
    files = make_server_files(list(hosts), days=2)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return Signer.load(folder / "server.pem", folder / "server.key"), files["ca.pem"]


@pytest.fixture
def server(tmp_path) -> tuple[Signer, bytes]:
    return make_server(tmp_path / "server")


def sign(signer: Signer, question: Payload = QUESTION):
    return signer.sign(Digests.of(question), RUN, NODE, TERM)


@pytest.mark.parametrize("host", [HOST, "127.0.0.1"])
def test_the_servers_question_is_accepted_once(server, host):
    signer, authorities = server
    verifier, signature = Verifier(authorities, host), sign(signer)
    verifier.verify(QUESTION, signature, RUN, NODE)
    with pytest.raises(Refusal, match="repetition"):
        verifier.verify(QUESTION, signature, RUN, NODE)
    verifier.verify(QUESTION, sign(signer), RUN, NODE)


def test_a_question_without_a_signature_is_refused(server):
    with pytest.raises(Refusal, match="has signed"):
        Verifier(server[1], HOST).verify(QUESTION, None, RUN, NODE)


@pytest.mark.parametrize(
    ("question", "run", "node"),
    [
        (QUESTION._replace(facts=QUESTION.facts.replace("3", "4")), RUN, NODE),
        (QUESTION._replace(facts=QUESTION.facts.replace("train", "deliver")), RUN, NODE),
        (QUESTION._replace(trees={**QUESTION.trees, "model": b"124"}), RUN, NODE),
        (QUESTION._replace(trees={"model": b"123"}), RUN, NODE),
        (QUESTION._replace(trees={"down": b"123", "model": b"45"}), RUN, NODE),
        (QUESTION._replace(trees={**QUESTION.trees, "more": b""}), RUN, NODE),
        (QUESTION, RUN + 1, NODE),
        (QUESTION, RUN, NODE + 1),
    ],
)
def test_a_changed_question_is_refused(server, question, run, node):
    signer, authorities = server
    with pytest.raises(Refusal, match="changed"):
        Verifier(authorities, HOST).verify(question, sign(signer), run, node)


@pytest.mark.parametrize("changed", ["time", "term"])
def test_a_changed_time_or_term_is_refused(server, changed):
    signer, authorities = server
    signature = sign(signer)
    signature = signature._replace(**{changed: getattr(signature, changed) + 1})
    with pytest.raises(Refusal, match="changed"):
        Verifier(authorities, HOST).verify(QUESTION, signature, RUN, NODE)


def test_another_key_is_refused(server, tmp_path):
    signer, authorities = server
    other, _ = make_server(tmp_path / "other")
    forged = sign(Signer(signer.certificates, other.key))
    with pytest.raises(Refusal, match="changed"):
        Verifier(authorities, HOST).verify(QUESTION, forged, RUN, NODE)


def test_a_certificate_of_another_authority_is_refused(server, tmp_path):
    other, _ = make_server(tmp_path / "other")
    with pytest.raises(Refusal, match=r"ca\.pem"):
        Verifier(server[1], HOST).verify(QUESTION, sign(other), RUN, NODE)


def test_a_certificate_for_another_name_is_refused(server):
    """An authority may have issued certificates for other machines, too."""
    signer, authorities = server
    with pytest.raises(Refusal, match=r"other\.example\.org"):
        Verifier(authorities, "other.example.org").verify(QUESTION, sign(signer), RUN, NODE)


@pytest.mark.parametrize("certificates", [b"", b"no certificate"])
def test_what_is_no_certificate_is_refused(server, certificates):
    signer, authorities = server
    broken = sign(signer)._replace(certificates=certificates)
    with pytest.raises(Refusal, match="certificate"):
        Verifier(authorities, HOST).verify(QUESTION, broken, RUN, NODE)


DAY = 24 * 3600.0


@pytest.mark.parametrize("off", [-TOLERANCE - 5, TERM + TOLERANCE + 5])
def test_an_old_question_and_one_from_the_future_are_refused(server, off):
    signer, authorities = server
    verifier = Verifier(authorities, HOST, clock=lambda: time.time() + off)
    with pytest.raises(Refusal, match="clocks"):
        verifier.verify(QUESTION, sign(signer), RUN, NODE)


@pytest.mark.parametrize("off", [-DAY, 3 * DAY])
def test_a_certificate_before_and_after_its_time_is_refused(server, monkeypatch, off):
    """Both clocks agree here; only the certificate is not valid."""
    signer, authorities = server
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + off)
    with pytest.raises(Refusal, match="not valid now"):
        Verifier(authorities, HOST, clock=lambda: now + off).verify(
            QUESTION, sign(signer), RUN, NODE
        )


def _later(seconds: float) -> float:
    return time.time() + seconds


def test_a_clock_may_differ_a_little(server):
    signer, authorities = server
    for off in (5 - TOLERANCE, TERM + TOLERANCE - 5):
        verifier = Verifier(authorities, HOST, clock=partial(_later, off))
        verifier.verify(QUESTION, sign(signer), RUN, NODE)


def test_expired_signatures_are_forgotten(server, monkeypatch):
    signer, authorities = server
    now = [time.time()]
    monkeypatch.setattr(time, "time", lambda: now[0])
    verifier = Verifier(authorities, HOST, clock=lambda: now[0])
    for _ in range(5):
        verifier.verify(QUESTION, sign(signer), RUN, NODE)
    assert len(verifier.seen) == 5
    now[0] += TERM + TOLERANCE + 1
    verifier.verify(QUESTION, sign(signer), RUN, NODE)
    assert len(verifier.seen) == 1


@pytest.mark.parametrize(
    "make",
    [
        lambda: rsa.generate_private_key(65537, 2048),
        lambda: ec.generate_private_key(ec.SECP256R1()),
        ed25519.Ed25519PrivateKey.generate,
    ],
)
def test_every_usual_kind_of_key_signs(make: Callable[[], PrivateKey], tmp_path):
    from fedfm.deploy import signatures

    key = make()
    (tmp_path / "k").write_bytes(
        key.private_bytes(to.Encoding.PEM, to.PrivateFormat.PKCS8, to.NoEncryption())
    )
    (tmp_path / "c").write_bytes(b"")
    loaded = Signer.load(tmp_path / "c", tmp_path / "k")
    value = signatures._sign(loaded.key, b"data")
    signatures._verify(key.public_key(), value, b"data")
    with pytest.raises(InvalidSignature):
        signatures._verify(key.public_key(), value, b"date")


def test_a_key_that_is_none_is_named(tmp_path):
    (tmp_path / "server.key").write_text("no key")
    (tmp_path / "server.pem").write_text("")
    with pytest.raises(UserError, match=r"server\.key"):
        Signer.load(tmp_path / "server.pem", tmp_path / "server.key")


def test_a_chain_of_certificates_is_accepted(tmp_path):
    """server.pem may hold the certificate of an authority between the server and the root."""
    signer, authorities = make_server(tmp_path / "server")
    chained = Signer(signer.certificates + authorities, signer.key)
    assert len(x509.load_pem_x509_certificates(chained.certificates)) == 2
    Verifier(authorities, HOST).verify(QUESTION, sign(chained), RUN, NODE)
