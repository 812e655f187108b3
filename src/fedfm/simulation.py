"""A whole experiment on one machine: partition, rounds, evaluation, checkpoints, result."""

import logging
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import torch
from torch import nn

from fedfm import models
from fedfm.algorithms import Piece, Task, compose
from fedfm.core.client_states import ClientStates, InMemory, OnDisk
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
from fedfm.experiment import Experiment, describe
from fedfm.protocol import Protocol
from fedfm.records import Best, Progress, Result, RoundRecord
from fedfm.runs import RunFolder

logger = logging.getLogger(__name__)
Watcher = Callable[[RoundRecord], None]
"""Called after every round."""


class Simulation:
    """A federation set up on one machine, ready to run round after round."""

    def __init__(
        self,
        model: nn.Module,
        data: Dataset,
        experiment: Experiment,
        clients: ClientStates | None = None,
    ) -> None:
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
        self.experiment = experiment
        self.start = initial_state(start, experiment.method, task, clients)
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

    def run(self, folder: RunFolder | None = None, watch: Watcher | None = None) -> Result:
        """Every round that is left, kept in a folder and shown to `watch`."""
        progress = (folder and folder.load(self.start)) or Progress(self.start)
        while progress.state.round < self.experiment.protocol.rounds:
            progress = self.advance(progress)
            if folder:
                folder.save(progress)
            progress.state.clients.tidy()
            if watch:
                watch(progress.records[-1])
        assert progress.best is not None
        name, seed = self.experiment.method.name, self.experiment.seed
        result = Result(name, seed, progress.best, progress.records)
        if folder:
            folder.finish(result)
        return result

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
    client_states: Literal["auto", "memory", "disk"] = "auto",
    out: Path | str | None = None,
    resume: bool = False,
    config: dict[str, Any] | None = None,
    watch: Watcher | None = None,
) -> Result:
    """Run a federation of simulated clients; the result is the best model by validation.

    `model` returns (features, logits) (see `fedfm.models`) and is left as it is. With `out` the
    run keeps its files there, a checkpoint after every round included; `resume` goes on from the
    last one. `watch` is called after every round. `config` is what the folder records about the
    run: by default the arguments. What clients keep between rounds is held in memory or on disk;
    "auto" takes the disk where it may come to more than a gigabyte.
    """
    experiment = Experiment(
        compose(method),
        partition or Partition(),
        protocol or Protocol(),
        seed,
        executor,
        client_states,
    )
    with ExitStack() as stack:
        kept = Path(out) / "clients" if out else Path(stack.enter_context(TemporaryDirectory()))
        clients = OnDisk(kept) if experiment.states_on_disk(model_of(model)) else InMemory()
        simulation = Simulation(model, data, experiment, clients)
        if out is None:
            return simulation.run(None, watch)
        described = config or describe(model, data) | experiment.describe()
        return simulation.run(RunFolder.open(Path(out), described, resume), watch)
