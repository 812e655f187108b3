"""A whole experiment on one machine: partition, rounds, evaluation."""

import logging
import time
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import nn

from fedfm import models
from fedfm.config.experiment import Experiment
from fedfm.core.client_states import ClientStates
from fedfm.data import partition as partitions
from fedfm.data.dataset import Dataset
from fedfm.data.holdout import hold_out
from fedfm.engine.choice import ExecutorChoice, choose_executor, make_executor
from fedfm.engine.device_data import DeviceData
from fedfm.engine.evaluation import Evaluator, ModelScore
from fedfm.engine.executors import LoopExecutor
from fedfm.engine.networks import copy_model
from fedfm.engine.profile import phase
from fedfm.methods import Task
from fedfm.rounds.federation import Federation, LocalTraining
from fedfm.rounds.round import RoundLog, run_rounds
from fedfm.rounds.server import Diverged
from fedfm.rounds.state import State, initial_state
from fedfm.run.records import Best, Progress, RoundRecord

logger = logging.getLogger(__name__)


class Simulation:
    """A federation set up on one machine, ready to run round after round.

    A `sibling` with the same network and data lends its copy of the data and its executor.
    """

    device_data: tuple[DeviceData, DeviceData]
    choice: ExecutorChoice
    federation: Federation

    def __init__(
        self,
        model: nn.Module,
        data: Dataset,
        experiment: Experiment,
        clients: ClientStates | None = None,
        sibling: "Simulation | None" = None,
    ) -> None:
        training, seed, classes = experiment.training, experiment.seed, len(data.classes)
        shards = partitions.deal(data, training.clients, experiment.partition, seed)
        samples, validation = (
            [torch.from_numpy(part) for part in parts]
            for parts in hold_out(shards, training.validation, seed)
        )
        start = copy_model(model)
        self.experiment = experiment
        self.device_data = sibling.device_data if sibling else device_data(model, data)
        fed = Federation(
            task=Task(start, classes, models.check_model(model, data.shape, classes)),
            method=experiment.method,
            executor=LoopExecutor(model, self.device_data[0]),
            samples=samples,
            training=LocalTraining.from_config(training),
            participation=training.participation,
            augmented=data.augment,
            seed=seed,
            guard=experiment.guard,
        )
        if sibling:
            self.choice, chosen = sibling.choice, sibling.federation.executor
        else:
            self.choice = self._choice(model, fed)
            chosen = make_executor(
                self.choice.name, model, self.device_data[0], experiment.precision
            )
        self.federation = replace(fed, executor=chosen)
        self.start = initial_state(start, experiment.method, fed.task, clients)
        self.evaluate = Evaluator(chosen, validation, self.device_data[1])

    def _choice(self, model: nn.Module, fed: Federation) -> ExecutorChoice:
        """The executor that was asked for, or the fastest."""
        if self.experiment.executor != "auto":
            return ExecutorChoice(self.experiment.executor, "asked for")
        plans = [fed.plan(0, client) for client in fed.cohort(0)]
        return choose_executor(model, self.device_data[0], plans, fed.training.sgd)

    def advance(self, progress: Progress) -> Progress:
        """One more round, evaluated."""
        (after,) = advance([self], [progress])
        if isinstance(after, Diverged):
            raise after
        return after

    def judged(self, progress: Progress, state: State, log: RoundLog) -> ModelScore | None:
        """How good a round's model is; None where that is known, or not asked for."""
        training, share_every = self.experiment.training, self.experiment.method.share_every
        every = training.evaluate_every
        due = state.round % every == 0 or state.round == training.rounds
        last = max((state.round - 1) // every * every, 1)
        unchanged = state.round // share_every == last // share_every
        if progress.records and (unchanged or not due):
            return None
        with phase("evaluation"):
            return self.evaluate(state.model)


def device_data(model: nn.Module, data: Dataset) -> tuple[DeviceData, DeviceData]:
    """The training and the test data where the model is."""
    like = next(model.parameters())
    train, test = (
        DeviceData.from_split(split, data, like.device, like.dtype)
        for split in (data.train, data.test)
    )
    return train, test


def advance(
    simulations: Sequence[Simulation], progresses: Sequence[Progress]
) -> list[Progress | Diverged]:
    """One more round of simulations that differ in their seeds, all clients trained together."""
    began = time.perf_counter()
    states = [progress.state for progress in progresses]
    rounds = run_rounds(states, [simulation.federation for simulation in simulations])
    scores = [
        None if isinstance(outcome, Diverged) else simulation.judged(progress, *outcome)
        for simulation, progress, outcome in zip(simulations, progresses, rounds, strict=True)
    ]
    seconds = (time.perf_counter() - began) / len(simulations)
    return [
        outcome if isinstance(outcome, Diverged) else _extended(progress, *outcome, score, seconds)
        for progress, outcome, score in zip(progresses, rounds, scores, strict=True)
    ]


def _extended(
    progress: Progress, state: State, log: RoundLog, score: ModelScore | None, seconds: float
) -> Progress:
    """The progress after one more round; without a score it has that of the round before."""
    if log.failed:
        logger.warning("round %d: left out clients %s, not finite", state.round, log.failed)
    if score is None:
        last = progress.records[-1]
        accuracies = last.val_accuracy, last.test_accuracy
    else:
        accuracies = score.validation, score.test
    record = RoundRecord.of(state.round, log, seconds, accuracies)
    return Progress(state, _better(progress.best, state, score), (*progress.records, record))


def _better(best: Best | None, state: State, score: ModelScore | None) -> Best | None:
    """The best model by validation so far; of equals, the first."""
    if score is None or (best is not None and score.validation <= best.val_accuracy):
        return best
    clients = tuple(score.clients.tolist())
    return Best(state.round, score.validation, score.test, state.model, clients)
