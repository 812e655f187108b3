"""What a run reports: a line per round, and a summary."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

from fedfm.core.ledger import Traffic
from fedfm.methods.base import Model
from fedfm.rounds.round import RoundLog
from fedfm.rounds.state import State

Accuracies = tuple[float, float]
"""On validation samples, and on test samples."""


def best_so_far(rounds: Iterable[Accuracies]) -> list[float]:
    """After every round, the test accuracy of the round that validation would choose by then."""
    best: list[Accuracies] = []
    for accuracies in rounds:
        better = not best or accuracies[0] > best[-1][0]
        best.append(accuracies if better else best[-1])
    return [test for _, test in best]


@dataclass(frozen=True)
class RoundRecord:
    """One round: the accuracy of the global model after it, and what the round cost.

    Examples:
        >>> record = RoundRecord(1, 0.5, 0.4, 2.3, 0.1, 100, 100, 400, 400, 1)
        >>> record.traffic.bytes_up
        400
    """

    round: int
    """The number of the round, from 1."""
    val_accuracy: float
    """Local validation accuracy, averaged over all clients."""
    test_accuracy: float
    """Accuracy on the test samples."""
    train_loss: float | None
    """Averaged by data share; None where privacy keeps it at the clients."""
    seconds: float
    """How long the round took."""
    floats_up: int
    """Floats from all clients to the server, as the paper counts them."""
    floats_down: int
    """Floats from the server to all clients."""
    bytes_up: int
    """Bytes from all clients to the server: everything that is sent."""
    bytes_down: int
    """Bytes from the server to all clients."""
    handshakes: int
    """Exchanges between server and clients."""
    failed: int = 0
    """How many clients were left out: what they sent was not finite, or they did not answer."""
    losses: dict[str, float] = field(default_factory=dict)
    """The terms of `train_loss`: "task", comparable across methods, and those of the pieces."""

    @property
    def traffic(self) -> Traffic:
        """Everything that the round sent."""
        return Traffic(
            self.floats_up, self.floats_down, self.bytes_up, self.bytes_down, self.handshakes
        )

    def as_dict(self) -> dict[str, Any]:
        """Return plain numbers by name."""
        return asdict(self)


@dataclass(frozen=True)
class Best:
    """The model of the round with the best mean validation accuracy.

    Examples:
        A network takes the model as a state dict: parameters and buffers.

        >>> from fedfm import FedAvg, Training, models, simulate
        >>> network = models.build("mlp", shape=(1, 8, 8), classes=10)
        >>> few = Training(clients=3, rounds=1, epochs=1)
        >>> best = simulate(network, "digits", FedAvg(), training=few, executor="loop").best
        >>> network.load_state_dict(best.model.params | best.model.buffers)
        <All keys matched successfully>
    """

    round: int
    """The number of the round, from 1."""
    val_accuracy: float
    """Local validation accuracy, averaged over all clients."""
    test_accuracy: float
    """Accuracy on the test samples."""
    model: Model
    """Its parameters and buffers by name, leaves [...]."""
    client_accuracies: tuple[float, ...] = ()
    """On the validation samples of each client."""
    judges: tuple[int, ...] = ()
    """The clients of a deployment that measured it."""


class Score(NamedTuple):
    """How good a model is."""

    validation: float
    """The mean of the clients' validation accuracies."""
    test: float
    clients: tuple[float, ...] = ()
    """The validation accuracy of each client, where they are known."""
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

    def add_round(self, state: State, log: RoundLog, seconds: float) -> "Progress":
        """Return the progress after one more round, whose model is not evaluated yet."""
        loss, costs = None if log.loss is None else float(log.loss), log.traffic.as_dict()
        losses = {name: float(term) for name, term in log.terms.items()}
        rest: dict[str, Any] = {**costs, "failed": len(log.failed), "losses": losses}
        record = RoundRecord(state.round, 0.0, 0.0, loss, seconds, **rest)
        return replace(self, state=state, pending=record)

    def set_seconds(self, seconds: float) -> "Progress":
        """Return the progress with the time that its last round took."""
        *before, last = self.records
        return replace(self, records=(*before, replace(last, seconds=seconds)))

    def add_score(self, score: Score | None, better: bool | None = None) -> "Progress":
        """Return the progress with the pending round evaluated; None: as good as the one before.

        The best model is the one with the highest validation accuracy; of equals, the first.
        `better` decides instead where it is given.
        """
        assert self.pending is not None
        if score is None:
            last = self.records[-1]
            validation, test, best = last.val_accuracy, last.test_accuracy, self.best
        else:
            validation, test, best = score.validation, score.test, self.best
            if better is None:
                better = best is None or validation > best.val_accuracy
            if better:
                judged = validation, test, self.state.model, score.clients, score.judges
                best = Best(self.pending.round, *judged)
        record = replace(self.pending, val_accuracy=validation, test_accuracy=test)
        return Progress(self.state, best, (*self.records, record))


@dataclass(frozen=True)
class Result:
    """The outcome of a run: the best round by validation, and every round.

    Examples:
        >>> from fedfm import FedAvg, Training, simulate
        >>> few = Training(clients=3, rounds=2, epochs=1)
        >>> result = simulate("mlp", "digits", FedAvg(), training=few, executor="loop")
        >>> result.method, len(result.rounds), result.totals.handshakes
        ('fedavg', 2, 2)
        >>> result.test_accuracy == result.rounds[result.best.round - 1].test_accuracy
        True
    """

    method: str
    """The names of the method's pieces, joined by '+'."""
    seed: int
    """The seed of the run."""
    best: Best
    """The model of the round with the best mean validation accuracy."""
    rounds: tuple[RoundRecord, ...]
    """A record of every round."""
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
