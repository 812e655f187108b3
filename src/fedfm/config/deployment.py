"""The settings of a federation of real machines: limits, waiting times, secure sums."""

import math
from dataclasses import dataclass
from typing import Literal

from fedfm.core.errors import require

MEGABYTE = 2**20


@dataclass(frozen=True)
class Deployment:
    """How server and clients work together; a simulation uses only `minimum`.

    Examples:
        >>> Deployment(minimum=3, secure=True).largest
        1073741824
    """

    minimum: int = 2
    """The fewest clients that must answer in a round; with fewer, the run stops.

    With privacy, every client adds as much noise as this number of clients needs.
    """
    wait: float = 600.0
    """Seconds that the server waits for all clients at the start; then it needs the minimum."""
    timeout: float = 600.0
    """Seconds that the server waits for answers; it leaves out clients that are late."""
    message_limit: int = 1024
    """The size of the largest message that the server accepts, in megabytes.

    It also refuses an answer that is much larger than the method's answers are.
    """
    max_samples: int = 10_000_000
    """The most samples that a client may say it has; with more it is left out."""
    max_norm: float = 0.0
    """The largest L2 norm of what a client sends with its model; 0: no limit.

    It is the norm of the model's change, the buffers' change and further values of the method. In
    plain sums the server checks it; under secure sums every client checks itself.
    """
    over_norm: Literal["clip", "drop"] = "clip"
    """What happens to a larger update: it is scaled down to `max_norm`, or left out."""
    classes: tuple[str, ...] = ()
    """The names of the classes; by default those of the clients' data. Secure sums need them."""
    mean: tuple[float, ...] = ()
    """The mean of every channel or column; by default computed from the clients' sums."""
    std: tuple[float, ...] = ()
    """The standard deviation of every channel or column; give it if you give `mean`."""
    evaluate: Literal["clients", "server"] = "clients"
    """Who evaluates models.

    Clients use their validation samples, and the best round counts. The server uses the test split
    of the config's data, and the last round counts.
    """
    secure: bool = False
    """Whether the server sees only sums over clients."""
    threshold: int = 0
    """The clients needed to unmask a sum, at least the minimum; 0: two thirds of them."""
    range: float = 256.0
    """The largest absolute value of a sum of model changes in a secure sum."""

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        require(self.minimum >= 1, f"minimum must be at least 1, not {self.minimum}")
        for name in ("wait", "timeout", "message_limit", "range"):
            value = getattr(self, name)
            require(value > 0, f"{name} must be positive, not {value}")
        require(
            math.isfinite(self.max_norm) and self.max_norm >= 0,
            f"max_norm must be >= 0 and finite, not {self.max_norm}; 0 means no limit",
        )
        require(self.max_samples >= 1, f"max_samples must be at least 1, not {self.max_samples}")
        require(self.threshold >= 0, f"threshold must be >= 0, not {self.threshold}")
        require(
            all(self.classes) and len({*self.classes}) == len(self.classes),
            f"classes must be different names, none of them empty, not {[*self.classes]}",
        )
        require(
            len(self.mean) == len(self.std) and all(value > 0 for value in self.std),
            "give as many values of std as of mean, all of them above 0",
        )
        require(
            not self.secure or self.minimum >= 2,
            "minimum must be at least 2: a secure sum of one client hides nothing",
        )

    @property
    def largest(self) -> int:
        """The size of the largest message in bytes."""
        return self.message_limit * MEGABYTE
