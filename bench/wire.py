"""Deployed rounds without a network: bytes on the wire, our own time, and what a secure sum adds.

Server and clients are those that Flower runs; an in-process grid carries their messages. Bytes are
those of the objects that Flower sends. Time is all that fedfm does in a round but training and
measuring: one client's, since clients work at the same time, and the server's. It is processor time
of one thread, which others on the machine do not change. Files are shown apart, by the clock.
"""

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import wraps
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from bench._shared import describe_machine, make_table
from flwr.app import Message
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from rich.console import Console
from rich.table import Table

from fedfm.config import Config, load_config
from fedfm.core.ledger import Traffic
from fedfm.deploy import client_app
from fedfm.deploy import secure as secure_sums
from fedfm.deploy.client import client, runtime
from fedfm.deploy.client.site import Site
from fedfm.deploy.client.storage import Storage
from fedfm.deploy.masking import Masker
from fedfm.deploy.server import messaging, server, sums
from fedfm.deploy.server.server import Server
from fedfm.deploy.wire import FACTS
from fedfm.engine.executors import LoopExecutor
from fedfm.engine.profile import Profile, phase
from fedfm.methods.base import Model
from fedfm.rounds.state import State
from fedfm.run.folder import RunFolder
from fedfm.run.records import Progress, Score
from tests.deploy.inprocess import InProcessGrid

CLIENTS, ROUNDS, FIRST_NODE = 10, 3, 100
SETTINGS = (
    f"training.clients={CLIENTS}",
    f"training.rounds={ROUNDS}",
    "training.epochs=1",
    "training.batch_size=2",
    "training.lr=1e-6",
    "device=cpu",
)
SHAPES = {"resnet18": (3, 32, 32), "cnn": (1, 8, 8)}
METHODS = {"FedAvg": "fedavg", "FedFM": "fedfm", "FedFM-Lite": "fedfm-lite"}
TINY = """
import torch
from fedfm.data import Dataset, Split

torch.manual_seed(0)
inputs, labels = torch.randint(256, (6, *{shape}), dtype=torch.uint8), torch.arange(6) % 2


def images():
    train, test = Split(inputs[:4], labels[:4]), Split(inputs[4:], labels[4:])
    return Dataset("tiny", train, test, tuple("0123456789"))
"""
SITE = """
name = "c{k}"
out = "out"
threads = 1
data = {{ source = "python", entry = "{module}:images" }}
"""
AWAY = ("training", "measuring")
FILES, COUNTING = "files", "counting"
PHASES: Sequence[tuple[Any, str, str]] = (
    (LoopExecutor, "train", "training"),
    (LoopExecutor, "measure", "measuring"),
    (messaging, "pack", "write messages"),
    (messaging, "unpack", "read messages"),
    (client_app, "pack", "write messages"),
    (client_app, "unpack", "read messages"),
    (Site, "load_data", "load data"),
    (runtime, "build_model", "build the network"),
    (runtime, "make_executor", "build the network"),
    (client, "answer_train", "contribution"),
    (Masker, "mask", "encode, mask"),
    (Masker, "create_keys", "keys, letters"),
    (Masker, "share_secrets", "keys, letters"),
    (Storage, "save_model", FILES),
    (Storage, "load_model", FILES),
    (RunFolder, "save", FILES),
    (server, "expect_answer", "expected answers"),
    (sums, "read_sum", "check"),
    (sums, "add_answers", "add"),
    (secure_sums, "add", "add"),
    (secure_sums, "unmask", "unmask"),
    (secure_sums, "decode", "decode"),
)
Seconds = dict[str, float]


class Handshake(NamedTuple):
    """A question to a client and its answer, in bytes."""

    kind: str
    down: int
    up: int


class Watch(Profile):
    """Seconds of each round, by who spends them on what; the handshakes of the last round."""

    def __init__(self) -> None:
        super().__init__()
        self.rounds: list[Seconds] = []
        self.handshakes: list[Handshake] = []
        self.role, self._clock = "server", 0.0

    def push(self, name: str) -> None:
        """Enter a phase of whoever is at work; all parts of training are training."""
        above = self._phases[-1].split(": ")[1] if self._phases else ""
        super().push(f"{self.role}: {above if above in AWAY else name}")

    def _account(self) -> None:
        processor, clock = time.process_time(), time.perf_counter()
        if self._phases:
            files = self._phases[-1].endswith(FILES)
            spent = clock - self._clock if files else processor - self._since
            self.seconds[self._phases[-1]] += spent
        self._since, self._clock = processor, clock

    def begin_round(self) -> None:
        """Count for a new round."""
        self._account()
        self.seconds = defaultdict(float)
        self.rounds.append(self.seconds)

    def between(self, message: Message, answer: Callable[[], Message]) -> Message:
        """Stand between the server and a client."""
        self.role = "client"
        with phase("other"):
            reply = answer()
        self.role = "server"
        if len(self.rounds) == ROUNDS and message.metadata.dst_node_id == FIRST_NODE:
            with phase(COUNTING):
                found = Handshake(kind_of(message), wire_bytes(message), wire_bytes(reply))
                self.handshakes.append(found)
        return reply


class Watched(Server):
    """A server whose rounds are watched."""

    def _round(self, progress: Progress) -> Progress:
        assert isinstance(Profile.active, Watch)
        Profile.active.begin_round()
        return super()._round(progress)

    def _final_score(self, state: State) -> Score:
        """Left out, as the delivery: what is measured is over."""
        return Score(0.0, 0.0)

    def _deliver(self, model: Model) -> None:
        pass


class Run(NamedTuple):
    """A run, watched, and what the ledger says of its rounds."""

    watch: Watch
    ledger: list[Traffic]

    @property
    def best(self) -> Seconds:
        """Our own seconds in the quickest round of those that are alike."""
        rounds = map(ours, self.watch.rounds[1:])
        return min(rounds, key=in_all)


def kind_of(message: Message) -> str:
    return str(json.loads(str(message.content.config_records[FACTS]["json"]))["kind"])


def wire_bytes(message: Message) -> int:
    """The bytes of all objects that Flower sends for a message."""
    return sum(len(each.deflate()) for each in get_all_nested_objects(message).values())


def ours(round: Seconds) -> Seconds:
    """Of one client and of the server, without what a federation is for."""
    parts = {name: name.split(": ") for name in round}
    return {
        name: seconds / (CLIENTS if parts[name][0] == "client" else 1)
        for name, seconds in round.items()
        if parts[name][1] not in (*AWAY, COUNTING)
    }


def in_all(round: Seconds) -> float:
    """Without files."""
    return sum(seconds for name, seconds in round.items() if not name.endswith(FILES))


@contextmanager
def phases() -> Iterator[None]:
    """Time the parts of a round."""

    def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def wrapper(*args: Any, **options: Any) -> Any:
            with phase(name):
                return function(*args, **options)

        return wrapper

    with ExitStack() as stack:
        for owner, name, what in PHASES:
            stack.enter_context(patch.object(owner, name, timed(what, getattr(owner, name))))
        yield


def config_of(model: str, method: str, secure: bool) -> Config:
    matching = [f"{method}.start_round=0"] if method.startswith("fedfm") else []
    given = (f"model={{name='{model}'}}", f"method={method}", f"deployment.secure={secure}".lower())
    return load_config("digits", (*SETTINGS, *given, *matching))


def place_sites(folder: Path, model: str) -> dict[int, str]:
    """Clients with a handful of random images each; their site files by node."""
    module = f"tiny_{model}"
    sites = {}
    for k in range(CLIENTS):
        place = folder / f"c{k}"
        place.mkdir()
        (place / f"{module}.py").write_text(TINY.format(shape=SHAPES[model]))
        (place / "site.toml").write_text(SITE.format(k=k, module=module))
        sites[FIRST_NODE + k] = str(place / "site.toml")
    return sites


def watched(model: str, method: str, secure: bool) -> Run:
    config, watch = config_of(model, method, secure), Watch()
    with TemporaryDirectory() as folder, phases():
        grid = InProcessGrid(client_app.app, place_sites(Path(folder), model), watch.between)
        out = RunFolder.open(Path(folder) / "server", config.as_toml(), False)
        with watch:
            result = Watched(grid, config, out, lambda record: None, pause=0.0).run()
    return Run(watch, [record.traffic for record in result.rounds])


def bytes_table(runs: Mapping[str, Run]) -> Table:
    made = make_table(
        "bytes of a round and client: on the wire, by the ledger, the difference",
        "", "down", "ledger", "more", "up", "ledger ", "more ",
    )  # fmt: skip
    for name, (watch, ledger) in runs.items():
        cells = []
        for wire, counted in (
            (sum(each.down for each in watch.handshakes), ledger[-1].bytes_down // CLIENTS),
            (sum(each.up for each in watch.handshakes), ledger[-1].bytes_up // CLIENTS),
        ):
            cells += [f"{wire:,}", f"{counted:,}", f"{wire / counted - 1:.2%}"]
        made.add_row(name, *cells)
    return made


def handshakes_table(runs: Mapping[str, Run]) -> Table:
    made = make_table(
        "handshakes of a round: bytes of a client", "", "handshakes", "kind", "down", "up"
    )
    for name, (watch, _) in runs.items():
        columns = zip(
            *((h.kind, f"{h.down:,}", f"{h.up:,}") for h in watch.handshakes), strict=True
        )
        made.add_row(name, f"{len(watch.handshakes)}", *map("\n".join, columns))
    return made


def times_table(rounds: Mapping[str, Seconds]) -> Table:
    made = make_table("milliseconds of a client and of the server in a round", "", *rounds)
    for name in sorted({name for round in rounds.values() for name in round}):
        made.add_row(name, *(f"{1e3 * round.get(name, 0):.0f}" for round in rounds.values()))
    made.add_section()
    made.add_row("sum without files", *(f"{1e3 * in_all(round):.0f}" for round in rounds.values()))
    return made


def ratios(rounds: Mapping[str, Seconds], runs: Mapping[str, Run]) -> Iterator[str]:
    """What the secure sum adds, in time and bytes."""
    for name in METHODS:
        seconds = [in_all(rounds[each]) for each in (name, f"secure {name}")]
        sent = [
            sum(h.down + h.up for h in runs[f"{each}, resnet18"].watch.handshakes)
            for each in (name, f"secure {name}")
        ]
        time, size = seconds[1] / seconds[0], sent[1] / sent[0]
        yield f"secure / plain {name}: time {time:.2f}, bytes {size:.4f}"


def main() -> None:
    """Every method, plain and secure, in turns."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    kinds = [
        (f"secure {name}" if secure else name, method, secure)
        for name, method in METHODS.items()
        for secure in (False, True)
    ]
    runs: dict[str, Run] = {}
    best: dict[str, Seconds] = {}
    for _ in range(options.repeat):
        for name, method, secure in kinds:
            run = runs[f"{name}, resnet18"] = watched("resnet18", method, secure)
            best[name] = min(run.best, best.get(name, run.best), key=in_all)
    for name, method, secure in kinds:
        runs[f"{name}, cnn"] = watched("cnn", method, secure)
    console = Console(width=110, highlight=False)
    console.print(describe_machine())
    console.print(f"{CLIENTS} clients, one thread, best of {options.repeat} x {ROUNDS - 1} rounds")
    for made in (bytes_table(runs), handshakes_table(runs), times_table(best)):
        console.print(made)
    for line in ratios(best, runs):
        console.print(line)
    console.print("wanted: bytes within 2% of the ledger; 500 ms; secure: time below 3, bytes 2.2")


if __name__ == "__main__":
    main()
