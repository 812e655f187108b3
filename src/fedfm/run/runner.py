"""Runs from beginning to end: one, or several seeds of one experiment together."""

import logging
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

from fedfm.config.experiment import Experiment, describe
from fedfm.core.client_states import ClientStates, InMemory, OnDisk
from fedfm.core.errors import UserError
from fedfm.data.dataset import Dataset
from fedfm.engine.choice import ExecutorChoice
from fedfm.engine.networks import copy_model
from fedfm.engine.profile import phase
from fedfm.rounds.server import Diverged
from fedfm.run.folder import RunFolder
from fedfm.run.records import Progress, Result, RoundRecord
from fedfm.run.simulation import Simulation, advance

logger = logging.getLogger(__name__)
Watcher = Callable[[RoundRecord], None]
"""Called after every round, when all runs that are trained together have saved it."""


@dataclass(frozen=True)
class Run:
    """An experiment with its model, and where its files go."""

    model: nn.Module
    experiment: Experiment
    out: Path | None = None
    config: dict[str, Any] | None = None
    """What the folder records about the run; by default the arguments."""
    watch: Watcher | None = None

    @property
    def settled(self) -> Experiment:
        """The experiment with the executor that the folder knows, if it does."""
        known = self.out and RunFolder(self.out).choice()
        if known and self.experiment.executor == "auto":
            return replace(self.experiment, executor=known.name)
        return self.experiment

    def described(self, data: Dataset) -> dict[str, Any]:
        """What the folder records about the run."""
        return self.config or describe(self.model, data) | self.experiment.describe()

    def check_folder(self, data: Dataset, resume: bool) -> None:
        """Refuse a folder that the run could not have, before anything takes time."""
        if self.out and RunFolder.check(self.out, self.described(data), resume):
            RunFolder(self.out).check_simulated()

    def folder(self, data: Dataset, resume: bool, choice: ExecutorChoice) -> RunFolder | None:
        """The run's folder, new or the same run's."""
        if self.out is None:
            return None
        folder = RunFolder.open(self.out, self.described(data), resume)
        if folder.choice():
            folder.check_data(data.digest)
        else:
            folder.settle(choice, next(self.model.parameters()).device, data.digest)
        return folder

    def client_states(self, stack: ExitStack) -> ClientStates:
        """An empty store for what clients keep, as large as the experiment needs."""
        if not self.experiment.states_on_disk(copy_model(self.model)):
            return InMemory()
        if self.out is not None:
            return OnDisk(self.out / "clients")
        return OnDisk(Path(stack.enter_context(TemporaryDirectory())))


def run_together(runs: Sequence[Run], data: Dataset, resume: bool = False) -> list[Result]:
    """Runs of one network that differ in their seeds: all their clients are trained together.

    Those that were begun with another executor go on by themselves.
    """
    kinds = [run.settled.executor for run in runs]
    if len(set(kinds)) > 1:
        done = {
            kind: iter(run_together([r for r in runs if r.settled.executor == kind], data, resume))
            for kind in dict.fromkeys(kinds)
        }
        return [next(done[kind]) for kind in kinds]
    promise(runs[0].experiment)  # fails now where it would fail after the last round
    for run in runs:
        run.check_folder(data, resume)
    _warn_of_late_pieces(runs[0].experiment)
    with ExitStack() as stack:
        stack.enter_context(_current(next(runs[0].model.parameters()).device))
        simulations: list[Simulation] = []
        with phase("set-up"):
            for run in runs:
                sibling = simulations[0] if simulations else None
                clients = run.client_states(stack)
                simulations.append(Simulation(run.model, data, run.settled, clients, sibling))
        if runs[0].settled.executor == "auto":
            logger.info("executor %s: %s", *simulations[0].choice)
        folders = [
            run.folder(data, resume, simulation.choice)
            for run, simulation in zip(runs, simulations, strict=True)
        ]
        for folder in folders:
            if folder:
                stack.enter_context(folder.held())
        return _finish(simulations, folders, [run.watch for run in runs])


def _current(device: torch.device) -> AbstractContextManager[Any]:
    """The device that kernels are started on: of several GPUs the one with the model."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def _warn_of_late_pieces(experiment: Experiment) -> None:
    """Say so if a part of the method would never be at work."""
    rounds = experiment.training.rounds
    for piece in experiment.method.pieces:
        if piece.first_round >= rounds:
            said = "%s begins after round %d, but the run ends after round %d: it does nothing"
            logger.warning(said, piece.name, piece.first_round, rounds)


def _finish(
    simulations: Sequence[Simulation],
    folders: Sequence[RunFolder | None],
    watchers: Sequence[Watcher | None],
) -> list[Result]:
    """Every round that is left; a run that is behind the others catches up first."""
    progresses = [
        (folder and folder.load(simulation.start)) or Progress(simulation.start)
        for simulation, folder in zip(simulations, folders, strict=True)
    ]
    rounds, diverged = simulations[0].experiment.training.rounds, dict[int, Diverged]()
    while which := _furthest_behind(progresses, rounds, diverged):
        advanced = advance([simulations[i] for i in which], [progresses[i] for i in which])
        for i, progress in zip(which, advanced, strict=True):
            if isinstance(progress, Diverged):
                diverged[i] = progress
                continue
            progresses[i] = progress
            _keep(progress, folders[i], simulations[i].experiment.unsaved(progress.state.round))
        for i in which:  # all have saved the round: any of them may stop
            if i not in diverged and (watch := watchers[i]):
                watch(progresses[i].records[-1])
    every = zip(simulations, progresses, folders, strict=True)
    results = [_result(*one) for i, one in enumerate(every) if i not in diverged]
    for i, problem in diverged.items():
        seed = simulations[i].experiment.seed
        raise UserError(f"seed {seed}, {problem}") if results else problem
    return results


def _furthest_behind(
    progresses: Sequence[Progress], rounds: int, without: Collection[int]
) -> list[int]:
    """Those that have come least far, if that is not the end."""
    left = {i: p.state.round for i, p in enumerate(progresses) if i not in without}
    behind = min(left.values(), default=rounds)
    return [i for i, round in left.items() if round == behind < rounds]


def _keep(progress: Progress, folder: RunFolder | None, unsaved: int) -> None:
    if folder and unsaved:
        with phase("checkpoint"):
            folder.save(progress, unsaved)
    if unsaved or not folder:
        progress.state.clients.tidy()


def _result(simulation: Simulation, progress: Progress, folder: RunFolder | None) -> Result:
    assert progress.best is not None
    name, seed = simulation.experiment.method.name, simulation.experiment.seed
    result = Result(name, seed, progress.best, progress.records, promise(simulation.experiment))
    if folder:
        folder.finish(result)
    return result


def promise(experiment: Experiment) -> str | None:
    """What a run with privacy gives away, if clients did not hide in a secure sum as well."""
    if experiment.guard is None:
        return None
    return experiment.guard.describe_run(
        experiment.method, experiment.training.rounds, secure=False
    )
