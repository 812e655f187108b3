"""Certificates and identities of a federation, as bytes; `keys` writes them into folders.

The server has a TLS certificate (ECDSA P-384), signed by an authority of this federation. A client
identifies itself by an OpenSSH key (ECDSA P-384), as Flower's node authentication requires.
"""

import ipaddress
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives import serialization as to
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from fedfm.core.errors import UserError, require

AUTHORITY = "FedFM authority"
AUTHORITY_DAYS = 3650
BACKDATED = timedelta(hours=1)
"""Certificates are valid from this long before they are made, because clocks differ."""
SOON = timedelta(days=30)
"""A certificate that expires within this time is announced."""


SHA256 = hashes.SHA256()
_LOOPBACK = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))


class Authority(NamedTuple):
    """The certificate and the private key that sign the server's certificates."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    def to_files(self) -> dict[str, bytes]:
        """Return the authority's files in PEM."""
        return {"ca.pem": _to_pem(self.certificate), "ca.key": _to_private_pem(self.key)}


def make_authority(days: int = AUTHORITY_DAYS) -> Authority:
    """Make a new authority."""
    key = ec.generate_private_key(ec.SECP384R1())
    end = datetime.now(UTC) + timedelta(days=days)
    builder = _build(AUTHORITY, _common_name(AUTHORITY), key, end, is_authority=True)
    return Authority(builder.sign(key, hashes.SHA384()), key)


def read_authority(certificate: Path, key: Path) -> Authority:
    """Read an authority from its two files; refuse a key of another certificate."""
    try:
        private = to.load_pem_private_key(key.read_bytes(), None)
        authority = x509.load_pem_x509_certificate(certificate.read_bytes())
    except (ValueError, TypeError) as problem:
        raise UserError(f"{key.parent}: not an authority of `fedfm keys`: {problem}") from problem
    fits = private.public_key() == authority.public_key()
    require(fits, f"{key} is not the key of {certificate}: give the authority that made it")
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    return Authority(authority, private)


def make_server_files(
    names: Sequence[str], days: int, authority: Authority | None = None
) -> dict[str, bytes]:
    """Make a certificate for a server with these host names and addresses; return files in PEM.

    It is not valid longer than the authority is; without one, that is a new one.
    """
    authority = authority or make_authority()
    key = ec.generate_private_key(ec.SECP384R1())
    end = datetime.now(UTC) + timedelta(days=days)
    issuer = authority.certificate
    until = min(end, issuer.not_valid_after_utc)
    signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    certificate = (
        _build(names[0], issuer.subject, key, until, is_authority=False)
        .add_extension(x509.SubjectAlternativeName(map(_general_name, names)), critical=False)
        .add_extension(x509.ExtendedKeyUsage([x509.OID_SERVER_AUTH]), critical=False)
        .add_extension(signer, critical=False)
        .sign(authority.key, hashes.SHA384())
    )
    private = _to_private_pem(key)
    return {"ca.pem": _to_pem(issuer), "server.pem": _to_pem(certificate), "server.key": private}


def make_identity(name: str) -> tuple[bytes, bytes]:
    """Make a client's private and public key in OpenSSH's format."""
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(to.Encoding.PEM, to.PrivateFormat.OpenSSH, to.NoEncryption())
    public = key.public_key().public_bytes(to.Encoding.OpenSSH, to.PublicFormat.OpenSSH)
    return private, public + f" {name}\n".encode()


def read_names(certificate: Path) -> list[str]:
    """Return the host names and addresses that a certificate is for."""
    extensions = x509.load_pem_x509_certificate(certificate.read_bytes()).extensions
    names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    addresses = map(str, names.get_values_for_type(x509.IPAddress))
    return [*names.get_values_for_type(x509.DNSName), *addresses]


def read_fingerprint(certificate: Path) -> str:
    """Return the SHA-256 of a certificate, as `openssl x509 -fingerprint` computes it."""
    return x509.load_pem_x509_certificate(certificate.read_bytes()).fingerprint(SHA256).hex()


def check_server_files(certificate: Path, key: Path, authorities: bytes) -> None:
    """Refuse a server's certificate that would end its connections.

    It must fit its key, be valid now, and be of one of the authorities, also for loopback, where
    the server's own processes use it.
    """
    try:
        chain = x509.load_pem_x509_certificates(certificate.read_bytes())
        private = to.load_pem_private_key(key.read_bytes(), None)
        policy = PolicyBuilder().store(Store(x509.load_pem_x509_certificates(authorities)))
        policy.build_server_verifier(_LOOPBACK).verify(chain[0], chain[1:])
    except (ValueError, TypeError, VerificationError) as problem:
        raise UserError(
            "it is damaged, not valid now, not of the authority in ca.pem, or not for "
            f"{_LOOPBACK.value} ({problem})"
        ) from problem
    fits = private.public_key() == chain[0].public_key()
    require(fits, f"{key.name} is not its key: copy both files")


class Expiry(NamedTuple):
    """When a certificate expires, and what to do about it."""

    file: Path
    expires: datetime
    remedy: str

    def is_due(self, now: datetime) -> bool:
        """Return whether it expires soon."""
        return self.expires - now < SOON

    def require_valid(self, now: datetime) -> None:
        """Refuse a certificate that has expired."""
        when = self.expires.date().isoformat()
        require(self.expires > now, f"{self.file} expired on {when}: {self.remedy}")


def list_expiries(folder: Path) -> list[Expiry]:
    """Return when the authority's and the server's certificate in a server's folder expire."""
    server = x509.load_pem_x509_certificate((folder / "server.pem").read_bytes())
    bundle = x509.load_pem_x509_certificates((folder / "ca.pem").read_bytes())
    issuers = [each for each in bundle if each.subject == server.issuer] or bundle
    authority = max(each.not_valid_after_utc for each in issuers)
    return [
        Expiry(
            folder / "ca.pem",
            authority,
            "make new keys with `fedfm keys make` and give every client the new ca.pem",
        ),
        Expiry(
            folder / "server.pem",
            server.not_valid_after_utc,
            f"run `fedfm keys renew {folder}`, or get a new one from your authority; a running "
            "server takes it into use",
        ),
    ]


def _build(
    subject: str,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    until: datetime,
    *,
    is_authority: bool,
) -> x509.CertificateBuilder:
    public, depth = key.public_key(), 0 if is_authority else None
    usage = x509.KeyUsage(
        digital_signature=not is_authority,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    return (
        x509.CertificateBuilder()
        .subject_name(_common_name(subject))
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.now(UTC) - BACKDATED)
        .not_valid_after(until)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.BasicConstraints(is_authority, depth), critical=True)
        .add_extension(usage, critical=True)
    )


def _to_pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(to.Encoding.PEM)


def _to_private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(to.Encoding.PEM, to.PrivateFormat.PKCS8, to.NoEncryption())


def _common_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.OID_COMMON_NAME, name[:64])])


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
