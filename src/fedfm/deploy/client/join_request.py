"""What the node and the worker of `fedfm join` tell each other; PyTorch is not imported here."""

from pathlib import Path
from typing import NamedTuple


class JoinRequest(NamedTuple):
    """The arguments of `fedfm join` that describe the client."""

    source: str
    """The config: a file or a built-in name."""
    overrides: tuple[str, ...] = ()
    name: str | None = None
    data: str | None = None
    label: str | None = None
    size: int | None = None
    site: Path | None = None
    out: Path | None = None


class Prepared(NamedTuple):
    """A client whose data are suitable."""

    name: str
    site: Path
    """Its site file, which may have to be written yet."""
    out: Path
    result: Path
    """Where the federation's model will be."""
    message_limit: int
    """The bytes of the largest message that it accepts."""
