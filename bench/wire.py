"""Deployed rounds without a network: bytes on the wire, our own time, and what a secure sum adds.

Server and clients are those that Flower runs; an in-process grid carries their messages. Bytes are
those of the objects that Flower sends. Time is everything that FedFM does in a round except
training and measuring: that of one client, because clients work at the same time, and that of the
server. It is the processor time of one thread; other programs do not change it. Files are listed
separately, by the clock. A client that drops out of a secure sum does so after masking its answer.

    python -m bench.wire --processes 8

measures real processes on this machine instead: nodes of `fedfm join` and Flower's own.
"""

import argparse
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
from bench._processes import handshakes_table as handshakes_of_processes
from bench._shared import describe_machine, make_table
from flwr.app import Error, Message
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from rich.console import Console
from rich.table import Table

from fedfm.config import Config, load_config
from fedfm.core.ledger import Traffic
from fedfm.deploy import secure as secure_sums
from fedfm.deploy.client import answerer, client, runtime
from fedfm.deploy.client.site import Site
from fedfm.deploy.client.storage import Storage
from fedfm.deploy.masking import Masker
from fedfm.deploy.server import messaging, server, sums
from fedfm.deploy.server.server import Server
from fedfm.engine.executors import LoopExecutor
from fedfm.engine.profile import Profile, phase
from fedfm.methods.base import Model
from fedfm.rounds.state import State
from fedfm.run.folder import RunFolder
from fedfm.run.records import Progress, Score
from tests.deploy.inprocess import InProcessGrid, WarmApp

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
DROPOUTS = (1, 3)

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
    (answerer, "encode", "write messages"),
    (answerer, "decode", "read messages"),
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


class Case(NamedTuple):
    """A method with plain or secure sums; `dropouts` clients drop out of each."""

    title: str
    secure: bool = False
    dropouts: int = 0

    def __str__(self) -> str:
        """Return the heading of the case."""
        lost = f", {self.dropouts} drop out" if self.dropouts else ""
        return f"secure {self.title}{lost}" if self.secure else self.title

    def config(self, model: str) -> Config:
        """Return the config of a run."""
        method = METHODS[self.title]
        matching = [f"{method}.start_round=0"] if method.startswith("fedfm") else []
        secure = f"deployment.secure={self.secure}".lower()
        classes = f"deployment.classes={[*'0123456789']}"
        given = (f"model={{name='{model}'}}", f"method={method}", secure, classes)
        return load_config("digits", (*SETTINGS, *given, *matching))


CASES = [Case(title, secure) for title in METHODS for secure in (False, True)]
SECURE = [case for case in CASES if case.secure] + [Case("FedAvg", True, n) for n in DROPOUTS]


class Watch(Profile):
    """Seconds of each round, by who spends them on what; bytes of the last round's handshakes."""

    def __init__(self, dropouts: int) -> None:
        super().__init__()
        self.rounds: list[Seconds] = []
        self.handshakes: list[tuple[str, int, int]] = []
        """The kind of question, and the bytes to and from one client."""
        self.ledger = Traffic()
        self.dropped = range(FIRST_NODE + CLIENTS - dropouts, FIRST_NODE + CLIENTS)
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
        with phase(COUNTING):
            node = message.metadata.dst_node_id
            kind = message.metadata.message_type.removeprefix("query.")
            if len(self.rounds) == ROUNDS and node == FIRST_NODE:
                self.handshakes.append((kind, wire_bytes(message), wire_bytes(reply)))
            drops = node in self.dropped and kind == "train"
            return Message(Error(0, "dropped out"), reply_to=message) if drops else reply

    @property
    def bytes(self) -> tuple[int, int]:
        """Bytes on the wire to and from one client in the last round."""
        return sum(down for _, down, _ in self.handshakes), sum(up for *_, up in self.handshakes)

    @property
    def best(self) -> Seconds:
        """Our own seconds in the quickest of the rounds after the first."""
        return min(map(leave_out_training, self.rounds[1:]), key=total)


class WatchedServer(Server):
    """A server whose rounds are watched; what comes after the last round is left out."""

    def _round(self, progress: Progress) -> Progress:
        assert isinstance(Profile.active, Watch)
        Profile.active.begin_round()
        return super()._round(progress)

    def _final_score(self, state: State) -> Score:
        return Score(0.0, 0.0)

    def _deliver(self, model: Model, state: State) -> None:
        pass


def wire_bytes(message: Message) -> int:
    """Return the bytes of all objects that Flower sends for a message."""
    return sum(len(each.deflate()) for each in get_all_nested_objects(message).values())


def leave_out_training(round: Seconds) -> Seconds:
    """Return the seconds of one client and of the server, without training and measuring."""
    return {
        name: seconds / (CLIENTS if name.startswith("client") else 1)
        for name, seconds in round.items()
        if not name.endswith((*AWAY, COUNTING))
    }


def total(round: Seconds) -> float:
    """Return the sum without files."""
    return sum(seconds for name, seconds in round.items() if not name.endswith(FILES))


@contextmanager
def time_phases() -> Iterator[None]:
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


def write_sites(folder: Path, model: str) -> dict[int, str]:
    """Write clients with a handful of random images each; return their site files by node."""
    sites = {}
    for k in range(CLIENTS):
        place = folder / f"c{k}"
        place.mkdir()
        (place / f"tiny_{model}.py").write_text(TINY.format(shape=SHAPES[model]))
        (place / "site.toml").write_text(SITE.format(k=k, module=f"tiny_{model}"))
        sites[FIRST_NODE + k] = str(place / "site.toml")
    return sites


def run_case(case: Case, model: str) -> Watch:
    config, watch = case.config(model), Watch(case.dropouts)
    with TemporaryDirectory() as folder, time_phases():
        grid = InProcessGrid(WarmApp(), write_sites(Path(folder), model), watch.between)
        out = RunFolder.open(Path(folder) / "server", config.as_toml(), False)
        with watch:
            result = WatchedServer(grid, config, out, lambda record: None, pause=0.0).run()
    watch.ledger = result.rounds[-1].traffic
    return watch


def bytes_table(runs: Mapping[str, Watch]) -> Table:
    table = make_table(
        "bytes of a round and client: on the wire, by the ledger, the difference",
        "", "down", "ledger", "more", "up", "ledger ", "more ",
    )  # fmt: skip
    for name, watch in runs.items():
        cells = []
        ledger = (watch.ledger.bytes_down // CLIENTS, watch.ledger.bytes_up // CLIENTS)
        for wire, counted in zip(watch.bytes, ledger, strict=True):
            cells += [f"{wire:,}", f"{counted:,}", f"{wire / counted - 1:.2%}"]
        table.add_row(name, *cells)
    return table


def handshakes_table(runs: Mapping[str, Watch]) -> Table:
    table = make_table(
        "handshakes of a round: bytes of a client", "", "number", "kind", "down", "up"
    )
    for name, watch in runs.items():
        rows = [(kind, f"{down:,}", f"{up:,}") for kind, down, up in watch.handshakes]
        table.add_row(name, f"{len(rows)}", *map("\n".join, zip(*rows, strict=True)))
    return table


def times_table(rounds: Mapping[Case, Seconds]) -> Table:
    table = make_table("milliseconds of a client and of the server", "", *map(str, rounds))
    for name in sorted({name for round in rounds.values() for name in round}):
        table.add_row(name, *(f"{1e3 * round.get(name, 0):.0f}" for round in rounds.values()))
    table.add_section()
    table.add_row("sum without files", *(f"{1e3 * total(round):.0f}" for round in rounds.values()))
    return table


def main() -> None:
    """Run every case in turns."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument(
        "--processes", type=int, metavar="ROUNDS", help="measure handshakes of real processes only"
    )
    options = parser.parse_args()
    console = Console(width=140, highlight=False)
    console.print(describe_machine())
    if options.processes:
        console.print(handshakes_of_processes(options.processes))
        console.print("wanted: handshake 1, FedFM's round 2.5, processor per answer 0.15 s")
        return
    torch.set_num_threads(1)
    runs: dict[str, Watch] = {}
    best: dict[Case, Seconds] = {}
    for _ in range(options.repeat):
        for case in dict.fromkeys((*CASES, *SECURE)):
            run = runs[f"{case}, resnet18"] = run_case(case, "resnet18")
            best[case] = min(run.best, best.get(case, run.best), key=total)
    runs |= {f"{case}, cnn": run_case(case, "cnn") for case in CASES}
    console.print(f"{CLIENTS} clients, one thread, best of {options.repeat} x {ROUNDS - 1} rounds")
    for table in (bytes_table(runs), handshakes_table(runs), times_table(best)):
        console.print(table)
    for case in SECURE:
        plain = Case(case.title)
        sent = [sum(runs[f"{each}, resnet18"].bytes) for each in (case, plain)]
        ratios = f"time {total(best[case]) / total(best[plain]):.2f}, bytes {sent[0] / sent[1]:.4f}"
        console.print(f"{case} / plain: {ratios}")
    console.print("wanted: bytes within 2% of the ledger; 500 ms; secure: time below 3, bytes 2.2")


if __name__ == "__main__":
    main()
