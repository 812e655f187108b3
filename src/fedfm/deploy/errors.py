"""What a client tells the server when it cannot do what it is asked."""

from fedfm.core.errors import UserError


class Refusal(UserError):
    """A reason that may be told to the server.

    Other errors stay on the client's machine: their texts may hold paths or values of its data.
    """


class Lost(Refusal):
    """The client has lost what the server thinks it keeps, or has never had it."""
