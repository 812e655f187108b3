"""What a run reports: a line per round, and a summary."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

from fedfm.core.ledger import Traffic
from fedfm.core.tables import flatten_keys
from fedfm.methods.base import Model
from fedfm.rounds.round import RoundLog
from fedfm.rounds.state import State
from fedfm.run.client_results import ClientResults

Accuracies = tuple[float | None, float]
"""On validation samples, if there are any, and on test samples."""
Metrics = dict[str, dict[str, Any]]
"""Values of further metrics than accuracy by split ("val", "test") and name; None: no value."""


def best_so_far(rounds: Iterable[Accuracies]) -> list[float]:
    """After every round, the test accuracy of the round that validation would choose by then.

    Without validation the last round counts.
    """
    best: list[Accuracies] = []
    for accuracies in rounds:
        new, old = accuracies[0], best[-1][0] if best else None
        better = old is None or new is None or new > old
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
    val_accuracy: float | None
    """Local validation accuracy, averaged over all clients; None without validation samples."""
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
    metrics: Metrics = field(default_factory=dict)
    """Further metrics that are one number, by split ("val", "test") and name.

    Those on validation samples are averaged over the clients that have a value.
    """

    @property
    def traffic(self) -> Traffic:
        """Everything that the round sent."""
        return Traffic(
            self.floats_up, self.floats_down, self.bytes_up, self.bytes_down, self.handshakes
        )

    def as_dict(self) -> dict[str, Any]:
        """Return plain numbers by name, and further metrics by split if there are any."""
        numbers = asdict(self)
        return numbers if self.metrics else {k: v for k, v in numbers.items() if k != "metrics"}

    @property
    def numbers(self) -> dict[str, float | None]:
        """Plain numbers by name; a metric has its split before its name: "test_auc"."""
        numbers = {k: v for k, v in asdict(self).items() if k != "metrics"}
        return flatten_keys(numbers) | name_metrics(self.metrics)


def name_metrics(metrics: Metrics) -> dict[str, Any]:
    """Return the metrics that are one number by split and name: "val_auc", "test_auc"."""
    return {
        f"{split}_{name}": value
        for split, values in metrics.items()
        for name, value in values.items()
        if not isinstance(value, list)
    }


@dataclass(frozen=True)
class Best:
    """The model that is reported, and its score.

    It is that of the round with the best mean validation accuracy, unless `training.select_by` or
    `training.report` say otherwise.

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
    val_accuracy: float | None
    """Local validation accuracy, averaged over all clients; None without validation samples."""
    test_accuracy: float
    """Accuracy on the test samples."""
    model: Model
    """Its parameters and buffers by name, leaves [...]."""
    client_accuracies: tuple[float, ...] = ()
    """On the validation samples of each client."""
    judges: tuple[int, ...] = ()
    """The clients of a deployment that measured it."""
    metrics: Metrics = field(default_factory=dict)
    """Further metrics by split ("val", "test") and name; by class or as a matrix on "test" only."""
    clients: ClientResults | None = None
    """What each client gets, where it is known."""
    fine_tuned: ClientResults | None = None
    """What each client gets after training the model on its own samples."""

    def average(self, records: Sequence[RoundRecord]) -> "Best":
        """Return the same model with scores averaged over rounds; matrices stay as they are."""
        rounds = len(records)
        values = [[record.numbers[name] for record in records] for name in self._scores]
        means = {
            name: None if None in each else sum(each) / rounds  # type: ignore[arg-type]
            for name, each in zip(self._scores, values, strict=True)
        }
        metrics = {
            split: {name: means.get(f"{split}_{name}", value) for name, value in each.items()}
            for split, each in self.metrics.items()
        }
        accuracy = {name: means[name] for name in ("val_accuracy", "test_accuracy")}
        return replace(self, metrics=metrics, **accuracy)  # type: ignore[arg-type]

    @property
    def _scores(self) -> list[str]:
        return ["val_accuracy", "test_accuracy", *name_metrics(self.metrics)]


class Score(NamedTuple):
    """How good a model is."""

    validation: float | None
    """The mean of the clients' validation accuracies."""
    test: float
    clients: tuple[float, ...] = ()
    """The validation accuracy of each client, where they are known."""
    judges: tuple[int, ...] = ()
    """The clients of a deployment that measured it."""
    metrics: Metrics = {}  # noqa: RUF012  # never changed
    """Further metrics by split and name."""
    results: ClientResults | None = None
    """What each client gets."""

    @property
    def numbers(self) -> Metrics:
        """The further metrics that are one number."""
        return {
            split: {name: value for name, value in each.items() if not isinstance(value, list)}
            for split, each in self.metrics.items()
        }


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

    def add_score(self, score: Score | None, better: bool = False) -> "Progress":
        """Return the progress with the pending round evaluated; None: as good as the one before.

        `better`: whether its model replaces the best one.
        """
        assert self.pending is not None
        best = self.best
        if score is None:
            last = self.records[-1]
            validation, test, metrics = last.val_accuracy, last.test_accuracy, last.metrics
        else:
            validation, test, metrics = score.validation, score.test, score.numbers
            if better:
                judged = validation, test, self.state.model, score.clients, score.judges
                best = Best(self.pending.round, *judged, score.metrics, score.results)
        record = replace(self.pending, val_accuracy=validation, test_accuracy=test, metrics=metrics)
        return Progress(self.state, best, (*self.records, record))


@dataclass(frozen=True)
class Result:
    """The outcome of a run: the reported round, by default the best by validation, and all rounds.

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
    """The model that is reported: by default that of the round with the best mean validation
    accuracy."""
    rounds: tuple[RoundRecord, ...]
    """A record of every round."""
    privacy: str | None = None
    """What clients have given away, where [privacy] limits it."""

    @property
    def test_accuracy(self) -> float:
        """The test accuracy of the reported model."""
        return self.best.test_accuracy

    @property
    def test(self) -> dict[str, Any]:
        """The values of all metrics on the test samples, by name."""
        return {"accuracy": self.best.test_accuracy, **self.best.metrics.get("test", {})}

    @property
    def validation(self) -> dict[str, Any]:
        """The values of the metrics that are one number, averaged over validation samples."""
        return {"accuracy": self.best.val_accuracy, **self.best.metrics.get("val", {})}

    @property
    def clients(self) -> ClientResults | None:
        """What each client gets from the reported model."""
        return self.best.clients

    @property
    def totals(self) -> Traffic:
        """Everything that was sent."""
        return sum((record.traffic for record in self.rounds), Traffic())
