"""Runs from beginning to end: one, or several seeds of one experiment together."""

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from torch import nn

from fedfm.algorithms import Piece, compose
from fedfm.core.client_states import ClientStates, InMemory, OnDisk
from fedfm.core.errors import UserError, require
from fedfm.core.server import Diverged
from fedfm.data.dataset import Dataset
from fedfm.data.partition import Partition
from fedfm.engine.choice import Choice
from fedfm.engine.nets import model_of
from fedfm.engine.profile import phase
from fedfm.experiment import Experiment, describe
from fedfm.protocol import Protocol
from fedfm.records import Progress, Result, RoundRecord
from fedfm.runs import RunFolder
from fedfm.simulation import Simulation, advance

logger = logging.getLogger(__name__)
Watcher = Callable[[RoundRecord], None]
"""Called after every round."""


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
        if self.out:
            RunFolder.check(self.out, self.described(data), resume)

    def folder(self, data: Dataset, resume: bool, choice: Choice) -> RunFolder | None:
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
        if not self.experiment.states_on_disk(model_of(self.model)):
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
    for run in runs:
        run.check_folder(data, resume)
    _warn_of_late_pieces(runs[0].experiment)
    with ExitStack() as stack:
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


def _warn_of_late_pieces(experiment: Experiment) -> None:
    """Say so if a part of the method would never be at work."""
    rounds = experiment.protocol.rounds
    for piece in experiment.method.pieces:
        if piece.first_round >= rounds:
            said = "%s begins after round %d, but there are only %d rounds: it does nothing"
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
    rounds, diverged = simulations[0].experiment.protocol.rounds, dict[int, Diverged]()
    while which := _furthest_behind(progresses, rounds, diverged):
        advanced = advance([simulations[i] for i in which], [progresses[i] for i in which])
        for i, progress in zip(which, advanced, strict=True):
            if isinstance(progress, Diverged):
                diverged[i] = progress
                continue
            progresses[i] = progress
            unsaved = simulations[i].experiment.unsaved(progress.state.round)
            _keep(progress, folders[i], watchers[i], unsaved)
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


def _keep(
    progress: Progress, folder: RunFolder | None, watch: Watcher | None, unsaved: int
) -> None:
    if folder and unsaved:
        with phase("checkpoint"):
            folder.save(progress, unsaved)
    if unsaved or not folder:
        progress.state.clients.tidy()
    if watch:
        watch(progress.records[-1])


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
    return experiment.guard.statement(experiment.method, experiment.protocol.rounds, secure=False)


def _check_kinds(data: object, method: object, partition: object, protocol: object) -> None:
    """Refuse what a config would name: here the things themselves are wanted."""
    require(
        isinstance(data, Dataset), "data must be a fedfm.data.Dataset, e.g. fedfm.data.load(NAME)"
    )
    pieces = method if isinstance(method, list | tuple) else [method]
    require(
        all(isinstance(piece, Piece) for piece in pieces),
        "the method must be made of pieces, e.g. FedFM() or [FedProx(mu=0.1), FedFM()]",
    )
    for name, given, kind in (
        ("partition", partition, Partition),
        ("protocol", protocol, Protocol),
    ):
        known = given is None or isinstance(given, kind)
        require(known, f"{name} must be a fedfm.{kind.__name__}(...), not {given!r}")


def simulate(
    model: nn.Module,
    data: Dataset,
    method: Piece | Iterable[Piece],
    *,
    partition: Partition | None = None,
    protocol: Protocol | None = None,
    seed: int = 0,
    executor: str = "auto",
    precision: str = "auto",
    client_states: Literal["auto", "memory", "disk"] = "auto",
    out: Path | str | None = None,
    resume: bool = False,
    config: dict[str, Any] | None = None,
    watch: Watcher | None = None,
) -> Result:
    """Run a federation of simulated clients; the result is the best model by validation.

    `model` returns (features, logits) (see `fedfm.models`), is left as it is, and is trained where
    it lies: move it to a GPU first to train there. With `out` the run keeps its files there, a
    checkpoint after every round included; `resume` goes on from the last one. `watch` is called
    after every round. `config` is what the folder records about the run: by default the
    arguments. What clients keep between rounds is held in memory or on disk; "auto" takes the disk
    where it may come to more than a gigabyte. For `executor` and `precision` see docs/engine.md.
    """
    _check_kinds(data, method, partition, protocol)
    require(isinstance(model, nn.Module), "the model must be a torch.nn.Module, not its class")
    experiment = Experiment(
        compose(method),
        partition or Partition(),
        protocol or Protocol(),
        int(seed),
        executor,
        client_states,
        precision,
    )
    run = Run(model, experiment, Path(out) if out else None, config, watch)
    return run_together([run], data, resume)[0]


def simulate_seeds(
    build: Callable[[int], nn.Module],
    data: Dataset,
    method: Piece | Iterable[Piece],
    *,
    seeds: Sequence[int] = (0, 1, 2),
    partition: Partition | None = None,
    protocol: Protocol | None = None,
    executor: str = "auto",
    precision: str = "auto",
    out: Path | str | None = None,
    resume: bool = False,
) -> list[Result]:
    """Several seeds of one experiment as one job: faster than one by one, with the same results.

    `build` gives the model of a seed. With `out` each seed has a folder seed-N of its own there.
    """
    _check_kinds(data, method, partition, protocol)
    require(len(seeds) > 0, "simulate_seeds needs at least one seed")
    require(
        not isinstance(build, nn.Module),
        "simulate_seeds builds a model for each seed: give a function of the seed, not a model",
    )
    experiment = Experiment(
        compose(method),
        partition or Partition(),
        protocol or Protocol(),
        0,
        executor,
        precision=precision,
    )
    runs = [
        Run(
            build(seed),
            replace(experiment, seed=int(seed)),
            Path(out) / f"seed-{seed}" if out else None,
        )
        for seed in seeds
    ]
    return run_together(runs, data, resume)
