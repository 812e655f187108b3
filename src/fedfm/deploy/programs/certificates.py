"""Certificates and identities of a test federation, as bytes; `keys` writes them into folders.

The server has a TLS certificate (ECDSA P-384), signed by an authority of this federation. A client
identifies itself by an OpenSSH key (ECDSA P-384), as Flower's node authentication requires.
"""

import ipaddress
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives import serialization as to
from cryptography.hazmat.primitives.asymmetric import ec

AUTHORITY = "FedFM test authority"
BACKDATED = timedelta(hours=1)
"""Certificates are valid from this long before they are made, because clocks differ."""


def make_server_files(names: Sequence[str], days: int) -> dict[str, bytes]:
    """Make a certificate for a server with these host names and addresses; return files in PEM.

    The authority's key is not kept: nothing can be signed with it later.
    """
    authority_key, key = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    authority = _sign(_build(AUTHORITY, authority_key, days, is_authority=True), authority_key)
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    certificate = _sign(
        _build(names[0], key, days, is_authority=False)
        .add_extension(x509.SubjectAlternativeName(map(_general_name, names)), critical=False)
        .add_extension(x509.ExtendedKeyUsage([x509.OID_SERVER_AUTH]), critical=False)
        .add_extension(issuer, critical=False),
        authority_key,
    )
    private = key.private_bytes(to.Encoding.PEM, to.PrivateFormat.PKCS8, to.NoEncryption())
    return {"ca.pem": authority, "server.pem": certificate, "server.key": private}


def make_identity(name: str) -> tuple[bytes, bytes]:
    """Make a client's private and public key in OpenSSH's format."""
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(to.Encoding.PEM, to.PrivateFormat.OpenSSH, to.NoEncryption())
    public = key.public_key().public_bytes(to.Encoding.OpenSSH, to.PublicFormat.OpenSSH)
    return private, public + f" {name}\n".encode()


def _build(
    subject: str, key: ec.EllipticCurvePrivateKey, days: int, *, is_authority: bool
) -> x509.CertificateBuilder:
    now, public = datetime.now(UTC), key.public_key()
    depth = 0 if is_authority else None
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
        .issuer_name(_common_name(AUTHORITY))
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.BasicConstraints(is_authority, depth), critical=True)
        .add_extension(usage, critical=True)
    )


def _sign(builder: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey) -> bytes:
    return builder.sign(key, hashes.SHA384()).public_bytes(to.Encoding.PEM)


def _common_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.OID_COMMON_NAME, name[:64])])


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
