"""Deployed rounds without a network: bytes on the wire, our own time, and what a secure sum adds.

Server and clients are the ones that Flower runs; an in-process grid carries their messages. Bytes
are those of the objects that Flower would send. Time is everything that fedfm does in a round but
training (and measuring accuracy and anchors): one client's, since clients work at the same time,
and the server's. What is written to disk, with fsync, is shown apart.
"""

import argparse
import platform
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import torch
from flwr.app import Message
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from rich.console import Console
from rich.table import Table

from fedfm.config import Config, load_config
from fedfm.core.ledger import Traffic
from fedfm.engine.executors import LoopExecutor
from fedfm.engine.profile import Profile, phase
from fedfm.flower import client, client_app, post, server, sums
from fedfm.flower.desk import Desk
from fedfm.flower.inprocess import InProcessGrid
from fedfm.flower.packets import FACTS
from fedfm.flower.server import Server
from fedfm.flower.workshop import Workshop
from fedfm.records import Progress
from fedfm.runs import RunFolder

CLIENTS, ROUNDS = 10, 3
LIMITS = {"bytes against the ledger": 0.02, "seconds": 0.5, "secure time": 3.0, "secure bytes": 2.2}
SETTINGS = (
    f"protocol.clients={CLIENTS}",
    f"protocol.rounds={ROUNDS}",
    "protocol.epochs=1",
    "protocol.batch_size=2",
    "protocol.lr=0.001",
    "device=cpu",
)
MODELS = {
    "resnet18": ("model={name='resnet18'}", (3, 32, 32)),
    "digits' cnn": ("model={name='cnn'}", (1, 8, 8)),
}
METHODS = {
    "FedAvg": "fedavg",
    "FedFM": "fedfm",
    "FedFM-Lite": "fedfm-lite",
}
DATA = """
import torch
from fedfm.data import Dataset, Split

def images():
    inputs = torch.randint(256, (6, *{shape}), dtype=torch.uint8)
    labels = torch.arange(6) % 2
    return Dataset("tiny", Split(inputs[:4], labels[:4]), Split(inputs[4:], labels[4:]), CLASSES)

CLASSES = tuple("0123456789")
"""
SITE = 'name = "c{k}"\nout = "out"\nthreads = {threads}\n[data]\nsource = "python"\nentry = "{entry}"\n'
AWAY = ("training", "measuring")
"""Phases that are not ours to save: they are what a federation is for."""
DISK = "to disk"


@dataclass
class Handshake:
    """A question to all clients and their answers: bytes down and up, of all of them."""

    kind: str
    down: int = 0
    up: int = 0


@dataclass
class Watch(Profile):
    """Seconds of each round, by who spends them (server, clients) and on what."""

    rounds: list[dict[str, float]] = field(default_factory=list)
    handshakes: list[list[Handshake]] = field(default_factory=list)
    role: str = "server"

    def __post_init__(self) -> None:
        """Begin with nothing."""
        Profile.__init__(self)

    def push(self, name: str) -> None:
        """Enter a phase of whoever is at work; parts of training are training."""
        away = next((p.split(": ")[1] for p in self._phases if p.endswith(AWAY)), name)
        super().push(f"{self.role}: {away}")

    def begin_round(self) -> None:
        """Count for a new round."""
        self._account()
        self.seconds = defaultdict(float)
        self.rounds.append(self.seconds)
        self.handshakes.append([])

    def tamper(self, message: Message, answer: Callable[[], Message]) -> Message:
        """Stand between the server and a client."""
        kind = message_kind(message)
        if self.handshakes and (not self.handshakes[-1] or self.last.kind != kind):
            self.handshakes[-1].append(Handshake(kind))
        self.role = "client"
        with phase("other"):
            reply = answer()
        self.role = "server"
        if self.handshakes:
            with phase("not counted"):
                self.last.down += wire_bytes(message)
                self.last.up += wire_bytes(reply)
        return reply

    @property
    def last(self) -> Handshake:
        """The handshake that is under way."""
        return self.handshakes[-1][-1]


def message_kind(message: Message) -> str:
    import json

    return str(json.loads(str(message.content.config_records[FACTS]["json"]))["kind"])


def wire_bytes(message: Message) -> int:
    """The bytes of all objects that Flower sends for a message."""
    return sum(len(each.deflate()) for each in get_all_nested_objects(message).values())


def in_phase(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, timed."""

    @wraps(function)
    def timed(*args: Any, **options: Any) -> Any:
        with phase(name):
            return function(*args, **options)

    return timed


PHASES: Sequence[tuple[Any, str, str]] = (
    (LoopExecutor, "train", "training"),
    (LoopExecutor, "measure", "measuring"),
    (post, "packed", "write messages"),
    (post, "unpacked", "read messages"),
    (client_app, "packed", "write messages"),
    (client_app, "unpacked", "read messages"),
    (client, "own_data", "load data"),
    (client, "contribution", "contribution") if hasattr(client, "contribution") else
    (client, "trained", "contribution"),
    (client.Hiding, "masked", "encode, mask"),
    (client.Hiding, "keys", "keys, letters"),
    (client.Hiding, "shares", "keys, letters"),
    (Desk, "keep_model", DISK),
    (Desk, "model", "read the model"),
    (RunFolder, "save", DISK),
    (server, "expected", "expected answers"),
    (sums, "checked", "check"),
    (sums, "added", "add"),
    (sums, "add", "add"),
    (sums, "unmasked", "unmask"),
    (sums, "decode", "decode"),
)  # fmt: skip


@contextmanager
def phases() -> Iterator[None]:
    """Time the parts of a round."""
    with ExitStack() as stack:
        for owner, name, what in PHASES:
            timed = in_phase(what, getattr(owner, name))
            stack.enter_context(patch.object(owner, name, timed))
        build = Workshop.__dict__["network"].func
        stack.enter_context(
            patch.object(Workshop.__dict__["network"], "func", in_phase("build the network", build))
        )
        yield


class Watched(Server):
    """A server that says when a round begins."""

    watch_: Watch

    def _round(self, progress: Progress) -> Progress:
        self.watch_.begin_round()
        with phase("other"):
            return super()._round(progress)


def config_of(model: str, method: str, secure: bool) -> Config:
    matching = [f"{method}.start_round=0"] if method.startswith("fedfm") else []
    given = (MODELS[model][0], f"method={method}", f"deployment.secure={str(secure).lower()}")
    return load_config("digits", (*SETTINGS, *given, *matching))


def watched(model: str, method: str, secure: bool, threads: int) -> tuple[Watch, list[Traffic]]:
    """A run, watched; and what the ledger says of its rounds."""
    config, shape = config_of(model, method, secure), MODELS[model][1]
    module = f"tiny_{shape[0]}"
    with TemporaryDirectory() as folder:
        sites = {}
        for k in range(CLIENTS):
            place = Path(folder) / f"c{k}"
            place.mkdir()
            (place / f"{module}.py").write_text(DATA.format(shape=shape))
            site = SITE.format(k=k, threads=threads, entry=f"{module}:images")
            (place / "site.toml").write_text(site)
            sites[100 + k] = str(place / "site.toml")
        out = RunFolder.open(Path(folder) / "server", config.as_toml(), False)
        watch = Watch()
        grid = InProcessGrid(client_app.app, sites, watch.tamper)
        with phases(), watch:
            federation = Watched(grid, config, out, lambda record: None, pause=0.0)
            federation.watch_ = watch
            result = federation.run()
    return watch, [record.traffic for record in result.rounds]


def own_seconds(round: dict[str, float], with_disk: bool = False) -> dict[str, float]:
    """Seconds of one client and of the server, by phase, without what is not ours."""
    ours: dict[str, float] = {}
    for name, seconds in round.items():
        role, what = name.split(": ")
        if what in (*AWAY, "not counted") or (what == DISK and not with_disk):
            continue
        ours[name] = seconds / CLIENTS if role == "client" else seconds
    return ours


def best_round(watch: Watch, with_disk: bool = False) -> dict[str, float]:
    """The quickest of the rounds that are like each other: all but the first."""
    each = [own_seconds(round, with_disk) for round in watch.rounds[1:]]
    return min(each, key=lambda round: sum(round.values()))


def table(title: str, *headings: str) -> Table:
    made = Table(title=title, title_justify="left")
    for i, heading in enumerate(headings):
        made.add_column(heading, justify="right" if i else "left")
    return made


def bytes_table(runs: dict[tuple[str, str], tuple[Watch, list[Traffic]]]) -> Table:
    made = table(
        "bytes of a round and client, on the wire and by the ledger",
        "", "down", "ledger", "more", "up", "ledger ", "more ",
    )  # fmt: skip
    for (model, name), (watch, ledger) in runs.items():
        sent, counted = watch.handshakes[-1], ledger[len(watch.handshakes) - 1]
        cells = []
        for wire, ours in (
            (sum(each.down for each in sent), counted.bytes_down),
            (sum(each.up for each in sent), counted.bytes_up),
        ):
            cells += [f"{wire / CLIENTS:,.0f}", f"{ours / CLIENTS:,.0f}", f"{wire / ours - 1:.2%}"]
        made.add_row(f"{name}, {model}", *cells)
    return made


def handshakes_table(runs: dict[tuple[str, str], tuple[Watch, list[Traffic]]]) -> Table:
    made = table("handshakes of a round, bytes of a client", "", "number", "kind: down / up")
    for (model, name), (watch, _) in runs.items():
        sent = watch.handshakes[-1]
        parts = [f"{s.kind} {s.down / CLIENTS:,.0f} / {s.up / CLIENTS:,.0f}" for s in sent]
        made.add_row(f"{name}, {model}", f"{len(sent)}", "\n".join(parts))
    return made


def times_table(rounds: dict[str, dict[str, float]]) -> Table:
    made = table("milliseconds of one client and of the server in a round", "", *rounds)
    for name in sorted({name for round in rounds.values() for name in round}):
        made.add_row(name, *(f"{1e3 * round.get(name, 0):.0f}" for round in rounds.values()))
    made.add_section()
    apart = f": {DISK}"
    made.add_row(
        "sum, without the disk",
        *(f"{1e3 * sum(s for n, s in r.items() if not n.endswith(apart)):.0f}" for r in rounds.values()),
    )
    return made


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(": ")[1] for line in lines if line.startswith("model name")), "")


def main() -> None:
    """Every method, plain and secure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    console = Console(width=120, highlight=False)
    console.print(f"{processor()}, {platform.system()}, Python {platform.python_version()}, ")
    runs = {}
    best: dict[str, dict[str, float]] = {}
    for _ in range(options.repeat):
        for name, method in METHODS.items():
            for secure in (False, True):
                title = f"{'secure ' if secure else ''}{name}"
                run = watched("resnet18", method, secure, options.threads)
                runs["resnet18", title] = run
                found = best_round(run[0], with_disk=True)
                if title not in best or sum(found.values()) < sum(best[title].values()):
                    best[title] = found
    for name, method in METHODS.items():
        for secure in (False, True):
            title = f"{'secure ' if secure else ''}{name}"
            runs["digits' cnn", title] = watched("digits' cnn", method, secure, options.threads)
    console.print(bytes_table(runs))
    console.print(handshakes_table(runs))
    console.print(times_table(best))


if __name__ == "__main__":
    main()
