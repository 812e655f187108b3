"""Errors of a deployment: what a client may tell the server, and what ends a secure sum."""

from collections.abc import Iterable

from fedfm.core.errors import UserError


class Refusal(UserError):
    """A reason that the server may know.

    The texts of other errors stay on the client's machine: they may hold paths or values of its
    data.
    """


class StateLost(Refusal):
    """The client does not have a file that the server expects it to have kept."""


class SecureError(UserError):
    """A secure sum that cannot continue; `client` is the client at fault, if known."""

    def __init__(self, message: str, client: int | None = None) -> None:
        super().__init__(message if client is None else f"client {client}: {message}")
        self.client = client


class BadEncryptedShares(SecureError):
    """Encrypted shares of another client that this client cannot use."""


class SumLost(SecureError):
    """A sum that cannot be unmasked, or cannot be true; `clients` are those at fault, if known."""

    def __init__(self, message: str, clients: Iterable[int] = ()) -> None:
        super().__init__(message)
        self.clients = frozenset(clients)


def insist(condition: bool, message: str, client: int | None = None) -> None:
    """Raise a `SecureError` unless `condition` holds."""
    if not condition:
        raise SecureError(message, client)
