"""A whole experiment on one machine: partition, rounds, evaluation."""

import logging
import time
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import nn

from fedfm import models
from fedfm.algorithms import Task
from fedfm.core.client_states import ClientStates
from fedfm.data import partition as partitions
from fedfm.data.dataset import Dataset
from fedfm.data.holdout import hold_out
from fedfm.engine.choice import Choice, automatic, executor
from fedfm.engine.evaluation import Evaluator, Score
from fedfm.engine.executors import LoopExecutor
from fedfm.engine.feed import Feed
from fedfm.engine.nets import model_of
from fedfm.engine.profile import phase
from fedfm.experiment import Experiment
from fedfm.records import Best, Progress, RoundRecord
from fedfm.rounds.federation import Federation, LocalTraining
from fedfm.rounds.round import RoundLog, run_rounds
from fedfm.rounds.server import Diverged
from fedfm.rounds.single_samples import check_single_samples
from fedfm.rounds.state import State, initial_state

logger = logging.getLogger(__name__)


class Simulation:
    """A federation set up on one machine, ready to run round after round.

    A `sibling` with the same network and data lends its copy of the data and its executor.
    """

    feeds: tuple[Feed, Feed]
    choice: Choice
    federation: Federation

    def __init__(
        self,
        model: nn.Module,
        data: Dataset,
        experiment: Experiment,
        clients: ClientStates | None = None,
        sibling: "Simulation | None" = None,
    ) -> None:
        protocol, seed, classes = experiment.protocol, experiment.seed, len(data.classes)
        shards = partitions.dealt(data, protocol.clients, experiment.partition, seed)
        training, validation = (
            [torch.from_numpy(part) for part in parts]
            for parts in hold_out(shards, protocol.validation, seed)
        )
        start = model_of(model)
        self.experiment = experiment
        self.feeds = sibling.feeds if sibling else feeds(model, data)
        fed = Federation(
            task=Task(start, classes, models.checked_features(model, data.shape, classes)),
            method=experiment.method,
            executor=LoopExecutor(model, self.feeds[0]),
            samples=training,
            training=LocalTraining.of(protocol),
            participation=protocol.participation,
            augmented=data.augment,
            seed=seed,
            guard=experiment.guard,
        )
        sizes = {f"client {k}": len(own) for k, own in enumerate(training)}
        check_single_samples(model, data.shape, sizes, fed.training)
        if sibling:
            self.choice, chosen = sibling.choice, sibling.federation.executor
        else:
            self.choice = self._choice(model, fed)
            chosen = executor(self.choice.name, model, self.feeds[0], experiment.precision)
        self.federation = replace(fed, executor=chosen)
        self.start = initial_state(start, experiment.method, fed.task, clients)
        self.evaluate = Evaluator(chosen, validation, self.feeds[1])

    def _choice(self, model: nn.Module, fed: Federation) -> Choice:
        """The executor that was asked for, or the fastest."""
        if self.experiment.executor != "auto":
            return Choice(self.experiment.executor, "asked for")
        plans = [fed.plan(0, client) for client in fed.cohort(0)]
        return automatic(model, self.feeds[0], plans, fed.training.sgd)

    def advance(self, progress: Progress) -> Progress:
        """One more round, evaluated."""
        (after,) = advance([self], [progress])
        if isinstance(after, Diverged):
            raise after
        return after

    def judged(self, progress: Progress, state: State, log: RoundLog) -> Score | None:
        """How good a round's model is; None where that is known, or not asked for."""
        protocol, share_every = self.experiment.protocol, self.experiment.method.share_every
        every = protocol.evaluate_every
        due = state.round % every == 0 or state.round == protocol.rounds
        last = max((state.round - 1) // every * every, 1)
        unchanged = state.round // share_every == last // share_every
        if progress.records and (unchanged or not due):
            return None
        with phase("evaluation"):
            return self.evaluate(state.model)


def feeds(model: nn.Module, data: Dataset) -> tuple[Feed, Feed]:
    """The training and the test data where the model is."""
    like = next(model.parameters())
    train, test = (
        Feed.of(split, data, like.device, like.dtype) for split in (data.train, data.test)
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
    progress: Progress, state: State, log: RoundLog, score: Score | None, seconds: float
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


def _better(best: Best | None, state: State, score: Score | None) -> Best | None:
    """The best model by validation so far; of equals, the first."""
    if score is None or (best is not None and score.validation <= best.val_accuracy):
        return best
    clients = tuple(score.clients.tolist())
    return Best(state.round, score.validation, score.test, state.model, clients)
