"""A whole experiment on one machine: partition, rounds, evaluation, checkpoints, result."""

import hashlib
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedfm import models
from fedfm.algorithms import Method, Piece, Task, compose
from fedfm.core.errors import require
from fedfm.core.federation import Federation, LocalTraining
from fedfm.core.rounds import run_round
from fedfm.core.sgd import Sgd
from fedfm.core.state import initial_state
from fedfm.data import partition as partitions
from fedfm.data.dataset import Dataset
from fedfm.data.holdout import hold_out
from fedfm.data.partition import Partition
from fedfm.engine.evaluation import Evaluator
from fedfm.engine.executors import executor
from fedfm.engine.feed import Feed
from fedfm.engine.nets import model_of
from fedfm.protocol import Protocol
from fedfm.records import Best, Progress, Result, RoundRecord
from fedfm.runs import RunFolder

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Experiment:
    """Everything that determines a run, apart from the model and the data."""

    method: Method
    partition: Partition
    protocol: Protocol
    seed: int
    executor: str

    def __post_init__(self) -> None:
        """Refuse a last round whose models would never be shared."""
        every, rounds = self.method.share_every, self.protocol.rounds
        require(
            rounds % every == 0,
            f"rounds must be a multiple of models_every = {every}, not {rounds}: "
            "what is trained after the last sharing would be lost",
        )

    def describe(self) -> dict[str, Any]:
        """The settings as plain values, for the records."""
        return {
            "seed": self.seed,
            "executor": self.executor,
            "method": {piece.name: settings(piece) for piece in self.method.pieces},
            "partition": asdict(self.partition),
            "protocol": asdict(self.protocol),
        }


def settings(piece: Piece) -> dict[str, Any]:
    """A piece's hyper-parameters by name."""
    return dict(vars(piece))


def describe(model: nn.Module, data: Dataset) -> dict[str, Any]:
    """Which model and data these are: names, and digests that others would not have."""
    weights, labels = model.state_dict().values(), (data.train.labels, data.test.labels)
    return {
        "model": {"name": type(model).__name__, "digest": digest(weights)},
        "data": {"name": data.name, "digest": digest(labels)},
    }


def digest(tensors: Iterable[Tensor]) -> str:
    """A short fingerprint of tensors' values."""
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()[:16]


class Simulation:
    """A federation set up on one machine, ready to run round after round."""

    def __init__(self, model: nn.Module, data: Dataset, experiment: Experiment) -> None:
        protocol, seed = experiment.protocol, experiment.seed
        labels, classes = data.train.labels.numpy(), len(data.classes)
        shards = partitions.split(labels, classes, protocol.clients, experiment.partition, seed)
        training, validation = (
            [torch.from_numpy(part) for part in parts]
            for parts in hold_out(shards, protocol.validation, seed)
        )
        like = next(model.parameters())
        train, test = (
            Feed.of(split, data, like.device, like.dtype) for split in (data.train, data.test)
        )
        start = model_of(model)
        task = Task(start, classes, models.feature_dim(model, data.shape))
        self.rounds = protocol.rounds
        self.start = initial_state(start, experiment.method, task)
        self.evaluate = Evaluator(model, train, validation, test)
        self.federation = Federation(
            task=task,
            method=experiment.method,
            executor=executor(experiment.executor, model, train),
            samples=training,
            training=LocalTraining(
                protocol.epochs,
                protocol.batch_size,
                protocol.keep_last,
                Sgd(protocol.lr, protocol.momentum, protocol.weight_decay),
            ),
            participation=protocol.participation,
            augmented=data.augment,
            seed=seed,
        )

    def advance(self, progress: Progress) -> Progress:
        """One more round, evaluated."""
        began = time.perf_counter()
        state, log = run_round(progress.state, self.federation)
        if log.failed:
            logger.warning("round %d: left out clients %s, not finite", state.round, log.failed)
        if state.model is progress.state.model and progress.records:
            last = progress.records[-1]
            validation, test = last.val_accuracy, last.test_accuracy
        else:
            validation, test = self.evaluate(state.model)
        record = RoundRecord(
            round=state.round,
            val_accuracy=validation,
            test_accuracy=test,
            train_loss=float((log.shares * log.losses).sum()),
            seconds=time.perf_counter() - began,
            failed=len(log.failed),
            **log.traffic.as_dict(),
        )
        best = progress.best
        if best is None or validation > best.val_accuracy:
            best = Best(state.round, validation, test, state.model)
        return Progress(state, best, (*progress.records, record))


def simulate(
    model: nn.Module,
    data: Dataset,
    method: Piece | Iterable[Piece],
    *,
    partition: Partition | None = None,
    protocol: Protocol | None = None,
    seed: int = 0,
    executor: str = "stacked",
    out: Path | str | None = None,
    resume: bool = False,
    config: dict[str, Any] | None = None,
    watch: Callable[[RoundRecord], None] | None = None,
) -> Result:
    """Run a federation of simulated clients; the result is the best model by validation.

    `model` returns (features, logits) (see `fedfm.models`) and is left as it is. With `out` the
    run keeps its files there, a checkpoint after every round included; `resume` goes on from the
    last one. `watch` is called after every round. `config` is what the folder records about the
    run: by default the arguments.
    """
    experiment = Experiment(
        compose(method), partition or Partition(), protocol or Protocol(), seed, executor
    )
    simulation = Simulation(model, data, experiment)
    folder = progress = None
    if out is not None:
        described = config or describe(model, data) | experiment.describe()
        folder = RunFolder.open(Path(out), described, resume)
        progress = folder.load(experiment.method)
    progress = progress or Progress(simulation.start)
    while progress.state.round < simulation.rounds:
        progress = simulation.advance(progress)
        if folder is not None:
            folder.save(progress)
        if watch is not None:
            watch(progress.records[-1])
    assert progress.best is not None
    result = Result(experiment.method.name, seed, progress.best, progress.records)
    if folder is not None:
        folder.finish(result)
    return result
