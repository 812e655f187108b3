"""Everything that determines a run, and how it is recorded."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from torch import nn

from fedfm.config.training import Training
from fedfm.core.errors import require
from fedfm.core.ledger import bytes_of
from fedfm.data.dataset import Dataset, fingerprint
from fedfm.data.partition import Partition
from fedfm.methods import Method, Model, Piece, Task
from fedfm.plugins import digest_sources
from fedfm.privacy import Privacy
from fedfm.privacy.guard import Guard, keyed

GIGABYTE = 2**30


@dataclass(frozen=True)
class Experiment:
    """Everything that determines a run, apart from the model and the data."""

    method: Method
    partition: Partition
    training: Training
    seed: int = 0
    executor: str = "auto"
    client_states: str = "auto"
    precision: str = "auto"
    privacy: Privacy | None = None
    fewest: int = 2
    """With privacy: no sum is over fewer clients (deployment.minimum)."""
    checkpoint_every: int = 1
    """Rounds between two checkpoints; there is one after the last round, too."""

    @property
    def guard(self) -> Guard | None:
        """Privacy at work in a simulation."""
        return Guard(self.privacy, self.fewest, keyed(self.seed)) if self.privacy else None

    def __post_init__(self) -> None:
        """Refuse unknown choices, and a last round whose models would never be shared."""
        require(self.checkpoint_every >= 1, "checkpoint_every must be at least 1")
        require(
            self.client_states in ("auto", "memory", "disk"),
            f"client_states is 'auto', 'memory' or 'disk', not '{self.client_states}'",
        )
        enough = self.privacy is None or self.fewest <= self.training.cohort
        require(
            enough,
            f"[privacy] counts on {self.fewest} clients in every sum (deployment.minimum), rounds "
            f"have {self.training.cohort}: lower it, or their noise is less than epsilon says",
        )
        every, rounds = self.method.share_every, self.training.rounds
        require(
            rounds % every == 0,
            f"rounds must be a multiple of models_every = {every}, not {rounds}: "
            "what is trained after the last sharing would be lost",
        )

    def unsaved(self, round: int) -> int:
        """How many rounds a checkpoint after so many would save; 0 where none is due."""
        since = round % self.checkpoint_every
        if since and round < self.training.rounds:
            return 0
        return since or self.checkpoint_every

    def describe(self) -> dict[str, Any]:
        """The settings as plain values, for the records."""
        return {
            "seed": self.seed,
            "executor": self.executor,
            "precision": self.precision,
            "client_states": self.client_states,
            "method": {piece.name: settings(piece) for piece in self.method.pieces},
            "partition": asdict(self.partition),
            "training": asdict(self.training),
            **({"privacy": asdict(self.privacy)} if self.privacy else {}),
            **({"code": code} if (code := digest_sources(self.method.pieces)) else {}),
        }

    def states_on_disk(self, model: Model) -> bool:
        """Whether what the clients keep is held on disk, given a template of the model [...]."""
        task = Task(model, classes=1, features=1)
        each = bytes_of({piece.name: piece.client_state(task) for piece in self.method.pieces})
        if self.method.share_every > 1:
            each += bytes_of(model._asdict())
        if self.client_states == "auto":
            return each * self.training.clients > GIGABYTE
        return self.client_states == "disk"


def settings(piece: Piece) -> dict[str, Any]:
    """A piece's hyper-parameters by name, as TOML has them: lists, and no None."""
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in vars(piece).items()
        if value is not None
    }


def describe(model: nn.Module, data: Dataset) -> dict[str, Any]:
    """Which model and data these are: names, digests that no others have, normalisation."""
    weights = model.state_dict().values()
    seen = {"mean": _rounded(data.mean), "std": _rounded(data.std), "augment": data.augment}
    usual = {"mean": [0.0], "std": [1.0], "augment": False}
    return {
        "model": {"name": type(model).__name__, "digest": fingerprint(weights)},
        "data": {"name": data.name, "digest": data.digest}
        | {name: value for name, value in seen.items() if value != usual[name]},
    }


def _rounded(values: Iterable[float]) -> list[float]:
    """To five digits: the last ones depend on how many threads computed them."""
    return [float(f"{value:.5g}") for value in values]
