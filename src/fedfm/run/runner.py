"""Run configs from beginning to end: one, or several seeds of one config together."""

import logging
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

from fedfm.config import Config
from fedfm.core.client_states import ClientStates, InMemory, OnDisk
from fedfm.core.errors import UserError, require
from fedfm.data.dataset import Dataset
from fedfm.engine.choice import ExecutorChoice
from fedfm.engine.networks import copy_model, describe_task
from fedfm.engine.processes import ALONE, Processes, connect
from fedfm.engine.profile import phase
from fedfm.rounds.server import Diverged
from fedfm.run.bookkeeper import Bookkeeper, Watcher, describe_privacy
from fedfm.run.description import DataDescription
from fedfm.run.extend import check_extension, copy_run
from fedfm.run.folder import RunFolder, check_writable, discard_run
from fedfm.run.prepare import build_model, device_of, follow_all, load_data, use_threads
from fedfm.run.process_agreement import (
    check_cohort,
    check_configs,
    check_inputs,
    check_states_folder,
    share_path,
    share_progress,
)
from fedfm.run.records import Progress, Result
from fedfm.run.simulation import Simulation, advance

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Run:
    """A config with its model, and where its files go."""

    model: nn.Module
    config: Config
    out: Path | None = None
    watch: Watcher | None = None
    parent: Path | None = None
    """The folder of the finished run that a new one goes on from."""
    executor: str | None = None
    """The executor that replaces the config's, once it is known."""

    def find_executor(self) -> str:
        """Return the executor that the folder records, or else that of the config."""
        begun = self.parent or self.out
        known = begun and RunFolder(begun).choice()
        return known.name if known and self.config.executor == "auto" else self.config.executor

    @property
    def effective_config(self) -> Config:
        """The config, with the executor that the folder records if there is one."""
        return self.config.model_copy(update={"executor": self.executor or self.find_executor()})

    @property
    def packing(self) -> tuple[object, ...]:
        """Runs that differ in it cannot be trained together."""
        config = self.effective_config
        return config.executor, config.seed if config.partition.changes_inputs else None

    def check_folder(self, resume: bool) -> None:
        """Refuse a folder that the run could not have, before anything takes time."""
        if self.out and RunFolder.check(self.out, self.config.as_toml(), resume):
            RunFolder(self.out).check_simulated()

    def folder(self, data: Dataset, resume: bool, choice: ExecutorChoice) -> RunFolder | None:
        """Return the run's folder; make it if it does not exist."""
        if self.out is None:
            return None
        if self.parent:
            RunFolder(self.parent).check_data(data.digest)
            folder = copy_run(self.parent, self.out, self.config)
        else:
            folder = RunFolder.open(self.out, self.config.as_toml(), resume)
            if folder.choice():
                folder.check_data(data.digest)
            else:
                folder.record_machine(choice, next(self.model.parameters()).device, data.digest)
        DataDescription.of(data).save(folder.path)
        return folder

    def client_states(self, stack: ExitStack, processes: Processes) -> ClientStates:
        """Return an empty store for what clients keep, as large as the config needs."""
        task = describe_task(self.model, copy_model(self.model), classes=1, features=1)
        if not self.config.keeps_states_on_disk(task):
            return InMemory()
        folder = self.out and self.out / "clients"
        folder = folder or Path(stack.enter_context(TemporaryDirectory()))
        return OnDisk(share_path(processes, folder), tidies=processes.first)


def run_configs(
    configs: Sequence[Config],
    *,
    outs: Sequence[Path | None] = (),
    watchers: Sequence[Watcher | None] = (),
    data: Dataset | None = None,
    networks: Sequence[nn.Module] = (),
    resume: bool = False,
    overwrite: bool = False,
    parents: Sequence[Path | None] = (),
) -> list[Result]:
    """Prepare and run configs that differ only in their seeds.

    `data` and `networks` replace those that the configs name. New runs go on from the finished runs
    in `parents`. With `overwrite` earlier runs in `outs` are deleted.
    """
    require(not (resume and overwrite), "a run is resumed or overwritten, not both")
    processes = connect()
    check_configs(processes, configs)
    configs, data = follow_all(configs, data)
    first, nobody = configs[0], [None] * len(configs)
    check_cohort(processes, first)
    if not processes.first:  # the first one keeps the books
        outs, watchers, parents = (), (), ()
    for config, out in zip(configs, outs or nobody, strict=True):
        if out and overwrite:
            discard_run(out)
        if out:
            _check_out(out, config, resume)
    for config, parent in zip(configs, parents or nobody, strict=True):
        if parent:
            check_extension(parent, config)
    with phase("set-up"):
        data, device = data or load_data(first), device_of(first)
        networks = networks or [build_model(config, data).to(device) for config in configs]
        check_inputs(processes, data, networks)
    several = (each or nobody for each in (outs, watchers, parents))
    every = zip(networks, configs, *several, strict=True)
    with use_threads(first.threads, networks[0]):
        return run_together([Run(*each) for each in every], data, resume, processes)


def _check_out(out: Path, config: Config, resume: bool) -> None:
    """Refuse a folder that a run of the config cannot have."""
    require(
        resume or not (out / "config.toml").exists(),
        f"{out} already holds a run: use resume=True, overwrite=True or another folder",
    )
    RunFolder.check(out, config.as_toml(), resume)
    check_writable(out)


def run_together(
    runs: Sequence[Run], data: Dataset, resume: bool = False, processes: Processes = ALONE
) -> list[Result]:
    """Run several seeds of one network; train the clients of all of them together.

    Runs that began with different executors, or whose inputs differ, continue separately. Several
    processes share the clients.
    """
    executors = processes.gather([run.executor or run.find_executor() for run in runs])[0]
    runs = [replace(run, executor=name) for run, name in zip(runs, executors, strict=True)]
    kinds = [run.packing for run in runs]
    if len(set(kinds)) > 1:
        alike = {k: [run for run in runs if run.packing == k] for k in dict.fromkeys(kinds)}
        done = {k: iter(run_together(each, data, resume, processes)) for k, each in alike.items()}
        return [next(done[kind]) for kind in kinds]
    describe_privacy(runs[0].config)  # fails now where it would fail after the last round
    for run in runs:
        run.check_folder(resume)
    _warn_of_late_pieces(runs[0].config)
    with ExitStack() as stack:
        stack.enter_context(_current(next(runs[0].model.parameters()).device))
        simulations: list[Simulation] = []
        with phase("set-up"):
            for run in runs:
                sibling = simulations[0] if simulations else None
                clients = run.client_states(stack, processes)
                simulations.append(
                    Simulation(run.model, data, run.effective_config, clients, sibling, processes)
                )
        if runs[0].effective_config.executor == "auto":
            logger.info("executor %s: %s", *simulations[0].choice)
        folders = [
            run.folder(data, resume, simulation.choice)
            for run, simulation in zip(runs, simulations, strict=True)
        ]
        for folder in folders:
            if folder:
                stack.enter_context(folder.lock())
        for simulation in simulations:
            check_states_folder(processes, simulation.start.clients)
        keepers = [Bookkeeper(r.config, f, r.watch) for r, f in zip(runs, folders, strict=True)]
        return _finish(simulations, keepers, processes)


def _current(device: torch.device) -> AbstractContextManager[Any]:
    """Start kernels on the device of the model, which may be one of several GPUs."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def _warn_of_late_pieces(config: Config) -> None:
    """Warn of pieces that would start after the last round."""
    rounds = config.training.rounds
    for piece in config.composed.pieces:
        if piece.first_round >= rounds:
            warning = "%s begins after round %d, but the run ends after round %d: it does nothing"
            logger.warning(warning, piece.name, piece.first_round, rounds)


def _finish(
    simulations: Sequence[Simulation], keepers: Sequence[Bookkeeper], processes: Processes
) -> list[Result]:
    """Run all remaining rounds; a run that is behind the others catches up first."""
    progresses = [
        share_progress(processes, keeper.begin(simulation.start), simulation.start)
        for keeper, simulation in zip(keepers, simulations, strict=True)
    ]
    rounds, diverged = simulations[0].config.training.rounds, dict[int, Diverged]()
    while which := _furthest_behind(progresses, rounds, diverged):
        advanced = advance([simulations[i] for i in which], [progresses[i] for i in which])
        for i, progress in zip(which, advanced, strict=True):
            if isinstance(progress, Diverged):
                diverged[i] = progress
                continue
            progresses[i] = progress
            keepers[i].save(progress)
        processes.wait()  # files of the round before are gone before the next round writes
        for i in which:  # all have saved the round: any of them may stop
            if i not in diverged:
                keepers[i].notify(progresses[i])
    results = [
        keeper.finish(progress, simulation.fine_tune)
        for i, (keeper, progress, simulation) in enumerate(
            zip(keepers, progresses, simulations, strict=True)
        )
        if i not in diverged
    ]
    for i, problem in diverged.items():
        seed = simulations[i].config.seed
        raise UserError(f"seed {seed}, {problem}") if results else problem
    return results


def _furthest_behind(
    progresses: Sequence[Progress], rounds: int, without: Collection[int]
) -> list[int]:
    """Return the runs with the fewest rounds, unless all are finished."""
    left = {i: p.state.round for i, p in enumerate(progresses) if i not in without}
    behind = min(left.values(), default=rounds)
    return [i for i, round in left.items() if round == behind < rounds]
