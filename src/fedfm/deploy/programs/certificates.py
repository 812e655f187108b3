"""Certificates and identities for a test federation, as bytes; `key_folders` lays them out.

The server shows a certificate that an authority made for this federation signed (ECDSA P-384,
TLS); a client proves who it is by an OpenSSH key (ECDSA P-384), as Flower's node authentication
wants it.
"""

import ipaddress
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from fedfm.core.errors import not_installed

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import (
        AuthorityKeyIdentifier,
        Certificate,
        CertificateBuilder,
        GeneralName,
        KeyUsage,
        Name,
    )

AUTHORITY = "FedFM test authority"
BACKDATED = timedelta(hours=1)
"""Clocks differ: a certificate is valid from a little before it was made."""


class ServerSecrets(NamedTuple):
    """In PEM: the authority's certificate, the server's certificate, the server's key."""

    authority: bytes
    certificate: bytes
    key: bytes


class Identity(NamedTuple):
    """A client's key pair in OpenSSH's format."""

    private: bytes
    public: bytes


def require_cryptography() -> None:
    """Say which extra is missing, if it is."""
    try:
        import cryptography  # noqa: F401
    except ImportError as problem:
        raise not_installed("making keys needs cryptography", "flower") from problem


def make_server_secrets(names: Sequence[str], days: int) -> ServerSecrets:
    """A certificate for a server with these host names and addresses.

    The authority's key signs once and is forgotten: nothing can be signed with it later.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    authority_key, key = _new_key(), _new_key()
    authority = (
        _builder(AUTHORITY, authority_key, days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .sign(authority_key, hashes.SHA384())
    )
    certificate = (
        _builder(names[0], key, days)
        .add_extension(x509.SubjectAlternativeName(map(_general_name, names)), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([x509.OID_SERVER_AUTH]), critical=False)
        .add_extension(_authority_of(authority_key), critical=False)
        .sign(authority_key, hashes.SHA384())
    )
    return ServerSecrets(_pem(authority), _pem(certificate), _key_pem(key))


def make_identity(name: str) -> Identity:
    """A client's key pair."""
    from cryptography.hazmat.primitives import serialization as to

    key = _new_key()
    private = key.private_bytes(to.Encoding.PEM, to.PrivateFormat.OpenSSH, to.NoEncryption())
    public = key.public_key().public_bytes(to.Encoding.OpenSSH, to.PublicFormat.OpenSSH)
    return Identity(private, public + f" {name}\n".encode())


def _new_key() -> "EllipticCurvePrivateKey":
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP384R1())


def _builder(subject: str, key: "EllipticCurvePrivateKey", days: int) -> "CertificateBuilder":
    from cryptography import x509

    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(_named(subject))
        .issuer_name(_named(AUTHORITY))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _named(common_name: str) -> "Name":
    from cryptography import x509

    return x509.Name([x509.NameAttribute(x509.OID_COMMON_NAME, common_name[:64])])


def _authority_of(key: "EllipticCurvePrivateKey") -> "AuthorityKeyIdentifier":
    from cryptography import x509

    return x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key())


def _usage(*, signs_certificates: bool) -> "KeyUsage":
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(name: str) -> "GeneralName":
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pem(certificate: "Certificate") -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM)


def _key_pem(key: "EllipticCurvePrivateKey") -> bytes:
    from cryptography.hazmat.primitives import serialization as to

    return key.private_bytes(to.Encoding.PEM, to.PrivateFormat.PKCS8, to.NoEncryption())
