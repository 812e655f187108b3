"""Signed questions: a client answers only what its federation's server has signed.

The server signs with the private key of its TLS certificate. The signature covers the run, the
node that the question is for, a time with a term, the facts (the federation's token, the kind and
the number of the question are among them) and every tree. A client trusts a certificate that its
ca.pem has issued for the server's name, as its TLS connection does.
"""

import hashlib
import ipaddress
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple, Self

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError
from flwr.app import ConfigRecord, RecordDict

from fedfm.core.errors import UserError, require
from fedfm.deploy.errors import Refusal
from fedfm.deploy.payload import Payload

RECORD = "signature"
"""The name of the record that holds a signature."""
TOLERANCE = 300.0
"""Seconds by which the clocks of server and client may differ."""
UNSIGNED = "this client answers only questions that its federation's server has signed"
FORGED = "the question's signature is not the server's, or the question was changed"
PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey


class Signature(NamedTuple):
    """What a signed question carries beside its content."""

    time: float
    """When it was signed, in seconds since 1970."""
    term: float
    """Seconds for which it is valid."""
    certificates: bytes
    """The server's certificate and those of authorities between it and the root, in PEM."""
    value: bytes


class Digests(NamedTuple):
    """SHA-256 of a question's facts and of its trees, by name."""

    facts: str
    trees: Mapping[str, str]

    @classmethod
    def of(cls, payload: Payload) -> Self:
        """Return the digests of a payload."""
        trees = {name: digest(data) for name, data in payload.trees.items()}
        return cls(digest(payload.facts.encode()), trees)


def digest(data: bytes) -> str:
    """Return SHA-256 in hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def _statement(digests: Digests, run: int, node: int, signed_at: float, term: float) -> bytes:
    """Return the bytes that are signed."""
    facts = {
        "fedfm": "question",
        "run": run,
        "node": node,
        "time": signed_at,
        "term": term,
        "facts": digests.facts,
        "trees": dict(digests.trees),
    }
    return json.dumps(facts, sort_keys=True).encode()


@dataclass(frozen=True)
class Signer:
    """Signs questions with the key of the server's certificate."""

    certificates: bytes
    key: PrivateKey

    @classmethod
    def load(cls, certificate: Path, key: Path) -> Self:
        """Read server.pem and server.key."""
        try:
            private = serialization.load_pem_private_key(key.read_bytes(), None)
        except (ValueError, TypeError) as problem:
            raise UserError(f"{key} is not a private key without a password: {problem}") from None
        require(
            isinstance(private, PrivateKey),
            f"{key}: the server's key must be an RSA, ECDSA or Ed25519 key",
        )
        return cls(certificate.read_bytes(), private)  # type: ignore[arg-type]  # required above

    def sign(self, digests: Digests, run: int, node: int, term: float) -> Signature:
        """Return the signature of a question that a node must answer within `term` seconds."""
        now, term = time.time(), float(term)
        value = _sign(self.key, _statement(digests, run, node, now, term))
        return Signature(now, term, self.certificates, value)


@dataclass
class Verifier:
    """Checks the signatures of questions to one client."""

    authorities: bytes
    """Contents of ca.pem."""
    host: str
    """The server's name or address, as this client connects to it."""
    clock: Callable[[], float] = time.time
    seen: dict[bytes, float] = field(default_factory=dict)
    """Signatures that were accepted, and when each expires."""

    def verify(self, payload: Payload, signature: Signature | None, run: int, node: int) -> None:
        """Raise a `Refusal` unless the server has signed this question for this node, just now."""
        if signature is None:
            raise Refusal(UNSIGNED)
        self._check_time(signature)
        key = self._check_certificate(signature.certificates)
        signed = _statement(Digests.of(payload), run, node, signature.time, signature.term)
        try:
            _verify(key, signature.value, signed)
        except InvalidSignature:
            raise Refusal(FORGED) from None
        self._remember(signature)

    def _check_time(self, signature: Signature) -> None:
        age = self.clock() - signature.time
        if not -TOLERANCE <= age <= signature.term + TOLERANCE:
            raise Refusal(
                f"the question was signed {abs(age):.0f} s {'ago' if age > 0 else 'ahead'} by this "
                "client's clock: it is a repetition, or the clocks differ; set them by NTP"
            )

    def _check_certificate(self, certificates: bytes) -> object:
        """Return the public key of the server's certificate."""
        try:
            chain = x509.load_pem_x509_certificates(certificates)
            roots = Store(x509.load_pem_x509_certificates(self.authorities))
            now = datetime.fromtimestamp(self.clock(), UTC)
            verifier = PolicyBuilder().store(roots).time(now).build_server_verifier(self._subject)
            verifier.verify(chain[0], chain[1:])
        except (ValueError, VerificationError) as problem:
            raise Refusal(
                f"the question's certificate is not from ca.pem, not for {self.host}, or not "
                f"valid now ({problem})"
            ) from problem
        return chain[0].public_key()

    @property
    def _subject(self) -> x509.DNSName | x509.IPAddress:
        try:
            return x509.IPAddress(ipaddress.ip_address(self.host))
        except ValueError:
            return x509.DNSName(self.host)

    def _remember(self, signature: Signature) -> None:
        now = self.clock()
        self.seen = {value: end for value, end in self.seen.items() if end > now}
        if signature.value in self.seen:
            raise Refusal("the question is a repetition of one that was answered")
        self.seen[signature.value] = signature.time + signature.term + TOLERANCE


def _sign(key: PrivateKey, data: bytes) -> bytes:
    if isinstance(key, ec.EllipticCurvePrivateKey):
        return key.sign(data, ec.ECDSA(hashes.SHA256()))
    if isinstance(key, rsa.RSAPrivateKey):
        return key.sign(data, _pss(), hashes.SHA256())
    return key.sign(data)


def _verify(key: object, value: bytes, data: bytes) -> None:
    if isinstance(key, ec.EllipticCurvePublicKey):
        key.verify(value, data, ec.ECDSA(hashes.SHA256()))
    elif isinstance(key, rsa.RSAPublicKey):
        key.verify(value, data, _pss(), hashes.SHA256())
    elif isinstance(key, ed25519.Ed25519PublicKey):
        key.verify(value, data)
    else:
        raise InvalidSignature


def _pss() -> padding.PSS:
    return padding.PSS(padding.MGF1(hashes.SHA256()), padding.PSS.DIGEST_LENGTH)


def attach_signature(record: RecordDict, signature: Signature) -> None:
    """Put a signature beside a message's content."""
    record[RECORD] = ConfigRecord(signature._asdict())


def read_signature(record: RecordDict) -> Signature | None:
    """Return the signature beside a message's content; None without a whole one."""
    try:
        values = record.config_records[RECORD]
        return Signature(
            time=float(values["time"]),  # type: ignore[arg-type]  # raises TypeError
            term=float(values["term"]),  # type: ignore[arg-type]
            certificates=bytes(values["certificates"]),  # type: ignore[arg-type]
            value=bytes(values["value"]),  # type: ignore[arg-type]
        )
    except (LookupError, TypeError, ValueError):
        return None
