"""Keys and certificates."""

import logging
from dataclasses import dataclass

from fedfm.deploy.events.base import Event


@dataclass(frozen=True)
class KeyAdded(Event):
    """A client's public key is accepted from now on."""

    text = "the key of '{name}' is accepted: {key}"
    name: str
    key: str


@dataclass(frozen=True)
class KeyRemoved(Event):
    """A client's public key is not accepted any more."""

    text = "the key of '{name}' is not accepted any more: {key}"
    level = logging.WARNING
    name: str
    key: str


@dataclass(frozen=True)
class KeyProblem(Event):
    """A client's public key could not be read or registered."""

    text = "the key of '{name}' cannot be used: {reason}"
    level = logging.ERROR
    name: str
    reason: str


@dataclass(frozen=True)
class CertificateExpires(Event):
    """A certificate has expired, or soon will."""

    text = "{file} is valid until {expires}: {remedy}"
    level = logging.WARNING
    file: str
    expires: str
    """The time in ISO format."""
    remedy: str


@dataclass(frozen=True)
class CertificateRenewed(Event):
    """The server uses a new certificate, for new connections and signatures."""

    text = "{file} is new and in use: for {names}, valid until {expires}"
    file: str
    names: list[str]
    expires: str
    """The time in ISO format."""
    sha256: str
    """The certificate's fingerprint."""


@dataclass(frozen=True)
class CertificateProblem(Event):
    """A new certificate cannot be used; the one before it stays in use."""

    text = "{file} is not used, and the certificate before it stays in use: {reason}"
    level = logging.ERROR
    file: str
    reason: str
