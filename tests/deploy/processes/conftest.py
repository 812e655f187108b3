"""Federations of real processes on this machine: `make test-deployment`.

Superlinks, nodes and their workers, on loopback only; it takes minutes.
Without FEDFM_DEPLOYMENT=1 nothing here is collected. Linux only: processes are found in /proc.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from fedfm.cli.run import run_and_show
from fedfm.config import Config, load_config
from fedfm.core.checkpoint import load_checkpoint
from fedfm.core.tables import flatten_keys
from fedfm.core.trees import flatten
from fedfm.deploy.programs.addresses import Address, free_address
from tests.cli.tools import sets
from tests.deploy.conftest import SETTINGS as QUICK
from tests.deploy.conftest import Absent, Federation
from tests.deploy.processes.programs import Observer, Program, stop

if os.environ.get("FEDFM_DEPLOYMENT") != "1":
    collect_ignore_glob = ["test_*.py"]

BIN = Path(sys.executable).parent
CLIENTS = 3
SETTINGS = (
    f"training.clients={CLIENTS}",
    "executor=loop",
    "device=cpu",
    "deployment.wait=200",
    "deployment.timeout=200",
)
DIGITS = (*SETTINGS, "training.epochs=1", "training.lr=0.02", "partition.kind=niid2")


@pytest.fixture
def points(table) -> tuple[str, ...]:
    """The settings of a small table and network: clients begin faster than with digits."""
    return (*QUICK, f"data.path={table}", *SETTINGS)


@dataclass
class Machine:
    """Where a test's programs run, and what they leave there."""

    folder: Path
    inside: tuple[str, ...] = ()
    """The beginning of every command, where it runs in a network of its own."""
    programs: list[Program] = field(default_factory=list)
    hosts: set[str] = field(default_factory=lambda: {"127.0.0.1"})
    """The addresses at which its programs may listen."""

    def start(self, name: str, *command: object, **variables: str) -> Program:
        """Start a program of this name; another one of the same name writes to the same log."""
        said = self.folder / f"{name}.txt"
        self.programs.append(Program([*self.inside, *command], said, **variables))
        return self.programs[-1]


@pytest.fixture
def machine(tmp_path) -> Iterator[Machine]:
    """Watches over the test's processes, and ends those that it has left running.

    None outlives its program; they listen at the machine's hosts, by default on loopback only;
    telemetry of Flower's own programs is off.
    """
    found, observer = Machine(tmp_path), Observer(tmp_path)
    observer.start()
    yield found
    stop(found.programs)
    left = observer.wait_for_the_end()
    for program in found.programs:
        program.kill()
        print(f"--- {program.said.name}", *program.words.splitlines()[-40:], sep="\n")
    observer.finish()
    assert left == []
    assert observer.hosts == found.hosts
    assert observer.talkative == set()


@dataclass
class Deployment:
    """A federation by `fedfm serve` and `fedfm join`, and the same one simulated."""

    machine: Machine
    overrides: tuple[str, ...]
    address: Address

    @property
    def config(self) -> Config:
        """What is run."""
        return load_config("digits", self.overrides)

    @property
    def folder(self) -> Path:
        """Everything that belongs to it."""
        return self.machine.folder

    @property
    def out(self) -> Path:
        """The server's folder."""
        return self.folder / "server"

    def make_keys(self, folder: Path, *clients: str) -> None:
        """Make the keys of a federation with these clients."""
        who = [word for client in clients for word in ("--client", client)]
        command = (BIN / "fedfm", "keys", folder, "--server", self.address.host, *who)
        assert self.machine.start("keys", *command).wait() == 0

    def serve(self, *options: object) -> Program:
        """Start the server."""
        at = ("--port", self.address.port, "--out", self.out)
        given = sets(*self.overrides)
        return self.machine.start("server", BIN / "fedfm", "serve", "digits", *given, *at, *options)

    def join(self, client: int, *options: object) -> Program:
        """Start a client."""
        name, data = f"c{client}", f"share:{client % CLIENTS}/{CLIENTS}"
        who = ("--name", name, "--data", data, "--out", self.folder / name)
        where = ("--superlink", self.address)
        given = sets(*self.overrides)
        return self.machine.start(
            name, BIN / "fedfm", "join", "digits", *given, *where, *who, *options
        )

    def checkpoint(self) -> int:
        """How many rounds the server has finished."""
        manifest = self.out / "checkpoint" / "manifest.json"
        return json.loads(manifest.read_text())["facts"]["round"] if manifest.exists() else 0

    def keeps_state_of(self, round: int) -> bool:
        """Whether some client has finished a round and keeps its own state after it."""
        return any(self.folder.glob(f"c*/state/*-{round:06d}.safetensors"))

    def assert_simulated(self) -> None:
        """It has come to the simulation's result."""
        assert_simulated(self.out, self.config)

    def assert_simulated_without(self, absent: Absent) -> None:
        """It has come to the simulation's last model where some clients were absent at times."""
        parts, _ = load_checkpoint(self.out / "checkpoint") or ({}, {})
        state = Federation(self.out / "nobody", self.config).simulated_without(absent)
        assert_close(flatten(parts["state"]["model"]), flatten(state.model._asdict()))


@pytest.fixture
def deployment(machine) -> Callable[..., Deployment]:
    """Makes a federation with these settings."""

    def make(*overrides: str) -> Deployment:
        return Deployment(machine, overrides, free_address())

    return make


def rounds_of(out: Path) -> list[dict[str, Any]]:
    """A run's rounds, without what depends on the machine."""
    lines = (out / "rounds.jsonl").read_text().splitlines()
    return [flatten_keys(json.loads(line)) | {"seconds": 0.0} for line in lines]


def assert_simulated(out: Path, config: Config) -> None:
    """A run's folder holds what the simulation of the same config comes to."""
    scratch = out.with_name(f"{out.name}-simulated")
    run_and_show([config], [scratch], resume=False)
    ours, theirs = rounds_of(out), rounds_of(scratch)
    assert len(ours) == len(theirs) == config.training.rounds
    for one, other in zip(ours, theirs, strict=True):
        assert one == pytest.approx(other, rel=1e-5)
    assert_close(load_file(out / "model.safetensors"), load_file(scratch / "model.safetensors"))


def assert_close(ours: Mapping[str, torch.Tensor], theirs: Mapping[str, torch.Tensor]) -> None:
    """The same tensors, up to the rounding of floats."""
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        torch.testing.assert_close(ours[name], tensor, rtol=1e-4, atol=1e-5)
