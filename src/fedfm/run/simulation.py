"""A federation on one machine: partition, rounds, evaluation."""

import logging
import time
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import nn

from fedfm import models
from fedfm.config import Config
from fedfm.core import trees
from fedfm.core.client_states import ClientStates
from fedfm.data import partition as partitions
from fedfm.data.dataset import Dataset
from fedfm.data.holdout import hold_out, split_for_server
from fedfm.engine.choice import ExecutorChoice, choose_executor, make_executor
from fedfm.engine.device_data import DeviceData
from fedfm.engine.evaluation import Evaluator, OwnModels
from fedfm.engine.executors import LoopExecutor
from fedfm.engine.networks import copy_model, describe_task
from fedfm.engine.processes import ALONE, Processes
from fedfm.engine.profile import phase
from fedfm.losses import make_class_weights
from fedfm.methods.base import Model
from fedfm.rounds.federation import Federation, LocalTraining
from fedfm.rounds.group import personal_models
from fedfm.rounds.round import RoundLog, run_rounds
from fedfm.rounds.server import Diverged
from fedfm.rounds.shared_round import choose_cohort
from fedfm.rounds.single_samples import check_single_samples
from fedfm.rounds.state import State, initial_state
from fedfm.run.fine_tuning import check_fine_tuning, fine_tune
from fedfm.run.records import Best, Progress
from fedfm.run.scores import (
    check_labels,
    check_test_classes,
    find_owned,
    make_selection,
    score_evaluation,
)

logger = logging.getLogger(__name__)


class Simulation:
    """A federation set up on one machine, ready to run round after round.

    A `sibling` with the same network and data lends its copy of the data and its executor. Of
    several `processes`, each has all of this and trains a part of every round's clients.
    """

    device_data: tuple[DeviceData, DeviceData]
    choice: ExecutorChoice
    federation: Federation

    def __init__(
        self,
        model: nn.Module,
        data: Dataset,
        config: Config,
        clients: ClientStates | None = None,
        sibling: "Simulation | None" = None,
        processes: Processes = ALONE,
    ) -> None:
        training, seed, classes = config.training, config.seed, len(data.classes)
        check_test_classes(data)
        kept = training.server_validation
        data, shards = partitions.divide(data, training.clients, config.partition, seed, kept)
        parts = hold_out(shards, training.validation, seed, data.clients)
        if kept:
            _, servers = split_for_server(data.train.labels.cpu().numpy(), kept, seed)
            parts = parts[0], [servers]
        samples, validation = ([torch.from_numpy(part) for part in each] for each in parts)
        start = copy_model(model)
        self.config, self.method = config, config.composed
        self.device_data = sibling.device_data if sibling else device_data(model, data)
        fed = Federation(
            task=describe_task(
                model, start, classes, models.check_model(model, data.example, classes)
            ),
            method=self.method,
            executor=LoopExecutor(model, self.device_data[0]),
            samples=samples,
            training=LocalTraining.from_config(training),
            participation=training.participation,
            sampling=training.sampling,
            augmentation=data.augmentation,
            seed=seed,
            privacy=config.make_privacy(),
            task_loss=config.task_loss,
            class_weights=make_class_weights(
                training.class_weights, [data.train.labels[part] for part in samples], classes
            ),
            labels=data.train.labels,
            rounds=training.rounds,
            processes=processes,
        )
        self.method.check(fed.task)
        sizes = {f"client {k}": len(indices) for k, indices in enumerate(fed.samples)}
        check_single_samples(model, data.example, sizes, fed.training)
        fed.training.schedule.check_steps(max(map(fed.training.count_steps, sizes.values())))
        self.measures, self.selection = config.measures, make_selection(config)
        self.measures.try_out(classes, fed.task.features)
        labels = [data.train.labels[indices] for indices in validation]
        check_labels(self.measures, training.select_by, data.test.labels, labels)
        owned = find_owned(data, shards)
        check_fine_tuning(training, owned)
        if sibling:
            self.choice, chosen = sibling.choice, sibling.federation.executor
        else:
            self.choice = self._choice(model, fed)
            chosen = make_executor(self.choice.name, model, self.device_data[0], config.precision)
            self.choice = self.choice.add(chosen.note)
        self.federation = replace(fed, executor=chosen)
        self.start = initial_state(start, self.method, fed.task, clients)
        measured = self.device_data, self.measures, owned
        self.evaluate = Evaluator(chosen, validation, *measured, processes)

    def _choice(self, model: nn.Module, fed: Federation) -> ExecutorChoice:
        """Return the executor of the config, or the fastest one."""
        if self.config.executor != "auto":
            return ExecutorChoice(self.config.executor, "asked for")
        chosen = self._measure_choice(model, fed) if fed.processes.first else None
        return ExecutorChoice(*fed.processes.gather(chosen)[0])

    def _measure_choice(self, model: nn.Module, fed: Federation) -> ExecutorChoice:
        plans = [fed.plan(0, client) for client in choose_cohort(fed.cohort(0), fed)]
        rounds, optimizer = self.config.training.rounds, fed.training.optimizer
        return choose_executor(model, self.device_data[0], plans, optimizer, rounds)

    def advance(self, progress: Progress) -> Progress:
        """Run and evaluate one more round."""
        (after,) = advance([self], [progress])
        if isinstance(after, Diverged):
            raise after
        return after

    def evaluate_round(self, progress: Progress) -> Progress:
        """Evaluate the pending round's model if it has changed and evaluation is due."""
        training, share_every = self.config.training, self.method.share_every
        round, every = progress.state.round, training.evaluate_every
        due = round % every == 0 or round == training.rounds
        due = due or self.method.concludes(round, training.rounds)  # the score before it
        last = max((round - 1) // every * every, 1)
        unchanged = round // share_every == last // share_every
        if progress.records and (unchanged or not due):
            return progress.add_score(None)
        with phase("evaluation"):
            evaluation = self.evaluate(progress.state.model, self._own_models(progress.state))
            at_clients = training.server_validation == 0
            score = score_evaluation(evaluation, self.measures, by_client=at_clients)
        return progress.add_score(score, self.selection.prefers(score, progress.best))

    def _own_models(self, state: State) -> OwnModels | None:
        """Return the models that clients have of their own after a round, if they have any."""
        if not self.method.keeps_models:
            return None
        device = self.federation.task.device

        def models(clients: Sequence[int]) -> Model:
            kept = [trees.to_device(state.clients.get(client), device) for client in clients]
            return personal_models(state.model, kept)

        return OwnModels(len(self.federation.samples), models)

    def fine_tune(self, best: Best) -> Best:
        """Return the reported model with what clients get after local fine-tuning, if asked for."""
        epochs, rounds = self.config.training.fine_tune, self.config.training.rounds
        if not epochs:
            return best
        with phase("fine-tuning"):
            results = fine_tune(best.model, self.federation, self.evaluate, epochs, rounds)
        return replace(best, fine_tuned=results)


def device_data(model: nn.Module, data: Dataset) -> tuple[DeviceData, DeviceData]:
    """Return the training and the test data on the device of the model."""
    like = next(model.parameters())
    train, test = (
        DeviceData.from_split(split, data, like.device, like.dtype)
        for split in (data.train, data.test)
    )
    return train, test


def advance(
    simulations: Sequence[Simulation], progresses: Sequence[Progress]
) -> list[Progress | Diverged]:
    """Run one more round of simulations that differ in their seeds; train all clients together."""
    began = time.perf_counter()
    states = [progress.state for progress in progresses]
    rounds = run_rounds(states, [simulation.federation for simulation in simulations])
    outcomes = [
        outcome if isinstance(outcome, Diverged) else _evaluate(simulation, progress, *outcome)
        for simulation, progress, outcome in zip(simulations, progresses, rounds, strict=True)
    ]
    seconds = (time.perf_counter() - began) / len(simulations)
    return [
        outcome if isinstance(outcome, Diverged) else outcome.set_seconds(seconds)
        for outcome in outcomes
    ]


def _evaluate(simulation: Simulation, progress: Progress, state: State, log: RoundLog) -> Progress:
    """Return the progress after a round, evaluated."""
    if log.failed:
        logger.warning("round %d: left out clients %s, not finite", state.round, log.failed)
    return simulation.evaluate_round(progress.add_round(state, log, seconds=0.0))
