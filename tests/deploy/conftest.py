"""A small federation in one process: three clients with a share each of a small table."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Message

from fedfm.config import Config, load_config
from fedfm.core.client_states import InMemory
from fedfm.core.trees import flatten
from fedfm.deploy.packets import Packet, pack, unpack
from fedfm.deploy.payload import FACTS
from fedfm.deploy.server.server import Server
from fedfm.rounds.clients import answer_measure, answer_train
from fedfm.rounds.group import prepare_group
from fedfm.rounds.round import serve_round
from fedfm.rounds.stages import train_locally
from fedfm.rounds.state import State
from fedfm.run import prepare
from fedfm.run.folder import RunFolder
from fedfm.run.prepare import build_model, load_data
from fedfm.run.records import Progress, Result
from fedfm.run.simulation import Simulation
from tests.cli.conftest import command
from tests.deploy.inprocess import InProcessGrid, Tamper, WarmApp

__all__ = ["command"]  # a fixture for the tests here, too

CLIENTS = 3
NODES = range(100, 100 + CLIENTS)
LIMIT = 2**30
SETTINGS = (
    "data.name=csv",
    "model.name=mlp",
    "model.hidden=[12, 8]",
    "training.rounds=3",
    "training.epochs=1",
    "training.lr=0.02",
    "training.batch_size=8",
    "partition.kind=niid1",
    "partition.beta=1.0",
    "executor=loop",
    "device=cpu",
    "deployment.minimum=2",
    "deployment.wait=0.1",
    "deployment.timeout=0.1",
)
SECURE = "deployment.secure=true"
CLASSES = [f"kind{label}" for label in range(4)]
"""Those of `table`: secure sums need them in the config."""
FEATURE_MATCHING = ("start_round=1", "strength=0.2")
"""Anchors from the second round on, pulling so gently that rounding does not grow."""

Absent = Callable[[int, str, int], bool]
"""Whether a client is missing, by round (from 0), kind of question and number."""


@pytest.fixture(scope="session")
def table(tmp_path_factory) -> Path:
    """Four classes of points in six dimensions, which overlap."""
    draw = np.random.default_rng(5)
    labels = np.arange(200) % 4
    centres = 2 * draw.standard_normal((4, 6))
    points = centres[labels] + draw.standard_normal((200, 6))
    rows = [
        ",".join([*(f"{value:.4f}" for value in point), f"kind{label}"])
        for point, label in zip(points, labels, strict=True)
    ]
    path = tmp_path_factory.mktemp("data") / "points.csv"
    path.write_text("a,b,c,d,e,f,label\n" + "\n".join(rows) + "\n")
    return path


@pytest.fixture
def federation(table, tmp_path, monkeypatch) -> Callable[..., Federation]:
    """Makes a federation: a method, or several with commas, and overrides of the config."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)  # no test here cuts the power
    whole = cache(lambda data: load_data(Config(data=data)))  # clients load for every question
    monkeypatch.setattr(prepare, "load_data", lambda config: whole(config.data))

    def make(method: str = "fedavg", *overrides: str, clients: int = CLIENTS) -> Federation:
        names = method.split(",")
        matching = [f"{n}.{o}" for n in names if n.startswith("fedfm") for o in FEATURE_MATCHING]
        given = (f"training.clients={clients}", f"data.path={table}", f"method={names}")
        named = ("deployment.classes=" + str(CLASSES),) if SECURE in overrides else ()
        config = load_config("digits", (*SETTINGS, *given, *matching, *named, *overrides))
        folder = tmp_path / f"federation-{len(list(tmp_path.glob('federation-*')))}"
        for k in range(clients):
            data = {"source": '"share"', "share": k, "of": clients}
            write_site(folder / f"c{k}", f"c{k}", data)
        return Federation(folder, config)

    return make


def write_site(place: Path, name: str, data: Mapping[str, object], **options: object) -> None:
    """A client's site file; values as TOML writes them."""
    place.mkdir(parents=True, exist_ok=True)
    given = {"name": f'"{name}"', "out": '"out"', "threads": 1, **options}
    lines = [f"{key} = {value}" for key, value in given.items()]
    lines += ["[data]", *(f"{key} = {value}" for key, value in data.items())]
    (place / "site.toml").write_text("\n".join(lines) + "\n")


@dataclass
class Federation:
    """Clients, a server's folder, and a grid between them that may be tampered with."""

    folder: Path
    """Of the server, and of the clients c0, c1, ..."""
    config: Config

    def __post_init__(self) -> None:
        """Connect the clients."""
        places = sorted(self.folder.glob("c*"))
        sites = zip(count(NODES[0]), places, strict=False)
        self.grid = InProcessGrid(
            WarmApp(), {node: str(place / "site.toml") for node, place in sites}
        )

    def run(
        self, tamper: Tamper | None = None, resume: bool = False, beside: Sequence[str] = ()
    ) -> Result:
        """Start a server and let it finish; `beside` names what its folder already holds."""
        self.grid.tamper = tamper
        out = RunFolder.open(self.folder / "server", self.config.as_toml(), resume, beside)
        self.server = Server(self.grid, self.config, out, lambda record: None, pause=0.005)
        return self.server.run()

    @property
    def progress(self) -> Progress:
        """What lies in the server's folder."""
        found = self.server.folder.load(self.server.start)
        assert found is not None
        return found

    @property
    def state(self) -> State:
        """The last good state on the server's disk."""
        return self.progress.state

    def out(self, client: int) -> Path:
        """A client's own folder."""
        return self.folder / f"c{client}" / "out"

    @cached_property
    def simulation(self) -> Simulation:
        """The same federation, simulated."""
        data = load_data(self.config)
        return Simulation(build_model(self.config, data), data, self.config)

    def simulated(self) -> Progress:
        """The simulation from beginning to end."""
        progress = Progress(self.simulation.start)
        for _ in range(self.config.training.rounds):
            progress = self.simulation.advance(progress)
        return progress

    def simulated_without(self, absent: Absent, lost: Mapping[int, int] | None = None) -> State:
        """The simulation's rounds with clients that do not answer every question.

        `lost` says which client has lost its disk before which round.
        """
        state, fed = self.simulation.start, self.simulation.federation
        for round in range(self.config.training.rounds):
            state = _without_disk(state, (lost or {}).get(round))
            talk = serve_round(state, fed)
            ask = next(talk)
            while True:
                here = [k for k in ask.cohort if not absent(round, ask.kind, k)]
                ask = ask._replace(cohort=here)
                visit = prepare_group(ask, fed)
                if ask.kind == "measure":
                    ask = talk.send(answer_measure(visit, fed, ask))
                    continue
                sums = answer_train(visit, fed, ask, train_locally(visit, fed, ask))
                try:
                    talk.send(sums)
                except StopIteration as end:
                    state = end.value[0]
                    break
        return state


def _without_disk(state: State, client: int | None) -> State:
    assert isinstance(state.clients, InMemory)
    kept = {k: own for k, own in state.clients.states.items() if k != client}
    return replace(state, clients=InMemory(kept))


# --- messages -------------------------------------------------------------------------------------


def facts_of(message: Message) -> dict[str, Any]:
    """The facts of a question or an answer."""
    return dict(json.loads(str(message.content.config_records[FACTS]["json"])))


def tensors_of(message: Message) -> dict[str, torch.Tensor]:
    """All tensors of a question or an answer, by path."""
    return flatten(dict(unpack(message.content, LIMIT).trees))


def changed(reply: Message, change: Callable[[Packet], Packet]) -> Message:
    """An answer with something else in it."""
    reply.content = pack(change(unpack(reply.content, LIMIT)))
    return reply


Deed = Callable[[Message, Callable[[], Message]], Message | None]


def silent(message: Message, answer: Callable[[], Message]) -> None:
    """The client is dead, or the question does not reach it."""


def unheard(message: Message, answer: Callable[[], Message]) -> None:
    """The client does its work, but its answer is lost."""
    answer()


@dataclass
class Fault:
    """Something that happens to one client at some questions: `kind`, and which of these."""

    kind: str
    deed: Deed
    client: int = 1
    at: Sequence[int] = (0,)
    """Which questions of this kind to this client, from 0."""
    seen: int = 0

    def __call__(self, message: Message, answer: Callable[[], Message]) -> Message | None:
        """Let it happen, or not."""
        meant = message.metadata.dst_node_id == NODES[self.client]
        if not meant or facts_of(message)["kind"] != self.kind:
            return answer()
        self.seen += 1
        return self.deed(message, answer) if self.seen - 1 in self.at else answer()


# --- what is compared -----------------------------------------------------------------------------


def assert_same(one: State, other: State, rtol: float = 0.0, atol: float = 0.0) -> None:
    """Two states have the same model and server state; client states lie elsewhere."""
    assert one.round == other.round
    for a, b in ((one.model._asdict(), other.model._asdict()), (one.server, other.server)):
        found, wanted = flatten(a), flatten(b)
        assert found.keys() == wanted.keys()
        for name, leaf in wanted.items():
            told = f"{name} differs by {(found[name].double() - leaf.double()).abs().max():.2g}"
            torch.testing.assert_close(found[name], leaf, rtol=rtol, atol=atol, msg=told)


@pytest.fixture
def warnings(caplog) -> Callable[[], list[str]]:
    """The lines about trouble in the server's log so far; the clients' own logs are not meant."""
    caplog.set_level(logging.INFO, "fedfm")

    def lines() -> list[str]:
        return [
            record.getMessage()
            for record in caplog.records
            if record.levelno >= logging.WARNING
            and not record.name.startswith("fedfm.deploy.client")
        ]

    return lines
