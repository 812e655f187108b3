"""What goes wrong in a secure sum, with the client that is to blame where one is known."""

from fedfm.core.errors import UserError


class SecureError(UserError):
    """A secure sum that cannot go on; `client` is the number of the one whose data do not fit."""

    def __init__(self, message: str, client: int | None = None) -> None:
        super().__init__(message if client is None else f"client {client}: {message}")
        self.client = client


def insist(condition: bool, message: str, client: int | None = None) -> None:
    """Raise a `SecureError` unless `condition` holds."""
    if not condition:
        raise SecureError(message, client)
