"""What a run reports: a line per round, and a summary."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from fedfm.core.ledger import Traffic
from fedfm.methods.base import Model
from fedfm.rounds.round import RoundLog
from fedfm.rounds.state import State

Accuracies = tuple[float, float]
"""On validation samples, and on test samples."""


def best_so_far(rounds: Iterable[Accuracies]) -> list[float]:
    """After every round, the test accuracy of the round that validation would choose by then."""
    found: list[Accuracies] = []
    for accuracies in rounds:
        better = not found or accuracies[0] > found[-1][0]
        found.append(accuracies if better else found[-1])
    return [test for _, test in found]


@dataclass(frozen=True)
class RoundRecord:
    """One round (from 1): accuracies of the global model after it, and what it cost."""

    round: int
    val_accuracy: float
    """Local validation accuracy, averaged over all clients."""
    test_accuracy: float
    train_loss: float | None
    """Averaged by data share; None where privacy keeps it at the clients."""
    seconds: float
    floats_up: int
    floats_down: int
    bytes_up: int
    bytes_down: int
    handshakes: int
    failed: int = 0
    """How many clients were left out: what they sent was not finite, or they did not answer."""

    @staticmethod
    def of(round: int, log: RoundLog, seconds: float, accuracies: Accuracies) -> "RoundRecord":
        """What is recorded of a round: (validation, test) accuracy beside what its log says."""
        validation, test = accuracies
        return RoundRecord(
            round=round,
            val_accuracy=validation,
            test_accuracy=test,
            train_loss=None if log.loss is None else float(log.loss),
            seconds=seconds,
            failed=len(log.failed),
            **log.traffic.as_dict(),
        )

    @property
    def traffic(self) -> Traffic:
        """What the round sent."""
        return Traffic(
            self.floats_up, self.floats_down, self.bytes_up, self.bytes_down, self.handshakes
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers by name."""
        return asdict(self)


@dataclass(frozen=True)
class Best:
    """The model of the round with the best mean validation accuracy."""

    round: int
    val_accuracy: float
    test_accuracy: float
    model: Model
    client_accuracies: tuple[float, ...] = ()
    """On the validation samples of each client."""
    judges: tuple[int, ...] = ()
    """The clients of a deployment that measured it."""


@dataclass(frozen=True)
class Progress:
    """How far a run has come: everything that a checkpoint must hold."""

    state: State
    best: Best | None = None
    records: tuple[RoundRecord, ...] = ()
    pending: RoundRecord | None = None
    """The last round, where its model is not evaluated yet."""


@dataclass(frozen=True)
class Result:
    """The outcome of a run: the best round by validation, and every round."""

    method: str
    seed: int
    best: Best
    rounds: tuple[RoundRecord, ...]
    privacy: str | None = None
    """What clients have given away, where [privacy] limits it."""

    @property
    def test_accuracy(self) -> float:
        """The test accuracy of the model with the best validation accuracy."""
        return self.best.test_accuracy

    @property
    def totals(self) -> Traffic:
        """Everything that was sent."""
        return sum((record.traffic for record in self.rounds), Traffic())
