"""What a federation of real machines needs beside its experiment: limits, and whom to wait for."""

from dataclasses import dataclass
from typing import Literal

from fedfm.core.errors import require

MEGABYTE = 2**20


@dataclass(frozen=True)
class Deployment:
    """How server and clients deal with each other; of this a simulation knows the minimum only.

    Examples:
        >>> Deployment(minimum=3, secure=True).largest
        1073741824
    """

    minimum: int = 2
    """The fewest clients whose answers a round needs; with fewer the run stops.

    With privacy every client adds noise as if no more took part.
    """
    wait: float = 600.0
    """Seconds the server waits for all clients at the start; then the minimum has to be there."""
    timeout: float = 600.0
    """Seconds it waits for the answers to a question; who has not answered is left out."""
    message_limit: int = 1024
    """Megabytes of the largest message that the server accepts."""
    classes: tuple[str, ...] = ()
    """The classes by name; by default those that the clients have."""
    mean: tuple[float, ...] = ()
    """Of the inputs, per channel or column; by default found out from the clients' sums."""
    std: tuple[float, ...] = ()
    """Their standard deviation, where `mean` is given."""
    evaluate: Literal["clients", "server"] = "clients"
    """Who measures models: clients on what they held out, to choose the best round, or the server.

    The server has the test split of the config's data, and the last model counts.
    """
    secure: bool = False
    """Whether the server sees sums over clients only."""
    threshold: int = 0
    """How many clients must help to unmask a sum, never fewer than the minimum; 0: two thirds."""
    range: float = 256.0
    """What no sum of model changes may exceed in a secure sum."""

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        require(self.minimum >= 1, f"minimum must be at least 1, not {self.minimum}")
        for name in ("wait", "timeout", "message_limit", "range"):
            value = getattr(self, name)
            require(value > 0, f"{name} must be positive, not {value}")
        require(self.threshold >= 0, f"threshold must be >= 0, not {self.threshold}")
        require(
            all(self.classes) and len({*self.classes}) == len(self.classes),
            f"classes have names, each its own, not {[*self.classes]}",
        )
        require(
            len(self.mean) == len(self.std) and all(value > 0 for value in self.std),
            "mean and std go together, and no std is 0",
        )
        require(
            not self.secure or self.minimum >= 2,
            "a secure sum of one client hides nothing: minimum must be at least 2",
        )

    @property
    def largest(self) -> int:
        """The bytes of the largest message."""
        return self.message_limit * MEGABYTE
