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
    the best mean local validation accuracy, and its accuracy on the test set is the result. Other
    metrics, and another choice of the round, are possible.

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
    """The share of each client's samples held out for validation; 0: train on all of them."""
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
    select_by: str | None = None
    """The metric whose mean over the clients' validation samples chooses the best round.

    By default it is accuracy.
    """
    report: Literal["best", "last"] | None = None
    """Which round is reported: the best by validation, or the last.

    By default it is the best, and without validation samples the last.
    """
    last_rounds: int = 1
    """With report = "last": report the mean score of so many last rounds."""
    fine_tune: int = 0
    """Epochs in which every client trains the reported model on its own samples, to be tested."""

    @property
    def cohort(self) -> int:
        """The number of clients in a round; with coins, on average."""
        return cohort_size(self.participation, self.clients)

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        require_numbers(self)
        for name in ("clients", "rounds", "epochs", "batch_size", "evaluate_every", "last_rounds"):
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
        require(0 <= self.validation < 1, f"validation must be in [0, 1), not {self.validation}")
        require(self.lr > 0, f"lr must be positive, not {self.lr}")
        require(0 <= self.momentum < 1, f"momentum must be in [0, 1), not {self.momentum}")
        require(self.weight_decay >= 0, f"weight_decay must be >= 0, not {self.weight_decay}")
        require(self.fine_tune >= 0, f"fine_tune must be >= 0, not {self.fine_tune}")
        self._check_report()

    def _check_report(self) -> None:
        """Refuse to choose a round by what is not measured."""
        require(
            self.report in (None, "best", "last"),
            f"report must be 'best' or 'last', not {self.report!r}",
        )
        require(
            self.validation > 0 or self.select_by is None,
            f"select_by = {self.select_by!r} chooses a round on validation samples, but validation "
            "= 0: leave out select_by, or hold out some samples",
        )
        require(
            self.validation > 0 or self.report != "best",
            "report = 'best' chooses a round on validation samples, but validation = 0: use report "
            "= 'last', or hold out some samples",
        )
        require(
            self.report != "last" or self.select_by is None,
            "report = 'last' reports the last round, whatever select_by says: leave out one of "
            "them",
        )
        require(
            self.last_rounds == 1 or self.reports_last,
            f"last_rounds = {self.last_rounds} needs report = 'last'",
        )
        require(
            self.last_rounds == 1 or self.evaluate_every == 1,
            f"last_rounds = {self.last_rounds} averages rounds, so each of them must be evaluated: "
            "use evaluate_every = 1",
        )
        require(
            self.last_rounds <= self.rounds,
            f"last_rounds = {self.last_rounds}, but there are only {self.rounds} rounds",
        )

    @property
    def reports_last(self) -> bool:
        """Whether the last round is reported."""
        return self.report == "last" or not self.validation
