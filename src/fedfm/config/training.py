"""How clients train and how the result is measured: by default exactly as in the paper."""

from dataclasses import dataclass
from typing import Literal

from fedfm.core.errors import require, require_numbers


def cohort_size(participation: float, clients: int) -> int:
    """Return how many of `clients` clients take part in a round."""
    return max(1, int(participation * clients + 0.5))


@dataclass(frozen=True)
class Training:
    """Who trains how long, and how the result is measured (Sec. VII-A of the paper).

    A share of every client's samples is held out; the model reported is the one of the round with
    the best mean local validation accuracy, and its accuracy on the test set is the result.

    Examples:
        >>> Training(clients=20, participation=0.25).cohort
        5
    """

    clients: int = 10
    """K, the number of clients."""
    rounds: int = 100
    """T, the number of communication rounds."""
    participation: float = 1.0
    """The fraction of clients that takes part in a round."""
    sampling: Literal["fixed", "coin"] = "fixed"
    """How a round's clients are drawn: always equally many, or by a coin for each client.

    With "coin", every client takes part with probability `participation` (Poisson sampling), so the
    number varies. If nobody would take part, one client drawn at random does. Simulations only.
    """
    validation: float = 0.2
    """The share of each client's samples held out for validation."""
    epochs: int = 10
    """Local epochs in a round."""
    batch_size: int = 64
    """Samples in a local step."""
    lr: float = 0.01
    """The learning rate of local SGD."""
    momentum: float = 0.9
    """The momentum of local SGD; its buffers start at zero in every round."""
    weight_decay: float = 1e-5
    """The weight decay of local SGD."""
    keep_last: bool = False
    """Train on the last, incomplete batch of an epoch too."""
    evaluate_every: int = 1
    """Evaluate the model every so many rounds, and after the last; for many clients."""

    @property
    def cohort(self) -> int:
        """The number of clients in a round; with coins, on average."""
        return cohort_size(self.participation, self.clients)

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        require_numbers(self)
        for name in ("clients", "rounds", "epochs", "batch_size", "evaluate_every"):
            value = getattr(self, name)
            require(value >= 1, f"{name} must be at least 1, not {value}")
        require(
            0 < self.participation <= 1,
            f"participation must be in (0, 1], not {self.participation}",
        )
        require(
            self.sampling in ("fixed", "coin"),
            f"sampling must be 'fixed' or 'coin', not {self.sampling!r}",
        )
        require(0 < self.validation < 1, f"validation must be in (0, 1), not {self.validation}")
        require(self.lr > 0, f"lr must be positive, not {self.lr}")
        require(0 <= self.momentum < 1, f"momentum must be in [0, 1), not {self.momentum}")
        require(self.weight_decay >= 0, f"weight_decay must be >= 0, not {self.weight_decay}")
