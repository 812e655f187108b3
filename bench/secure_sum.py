"""A secure sum against a plain one: ten clients, a ResNet-18 (11,181,642 floats, 45 MB) each."""

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
from math import prod
from typing import Any, TypeVar

import numpy as np
import torch
from bench._shared import make_table
from flwr.common import Array
from numpy.lib import format as npy
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from fedfm import models
from fedfm.core.trees import Tree, tree_map
from fedfm.deploy import secure
from fedfm.deploy.secure import Words

CLIENTS, THRESHOLD, RANGE = 10, 7, 64.0
DROPOUTS = (0, 1, 3)
PURPOSES = ("measure", "train")
LIMITS = {"time": 3.0, "bytes": 2.2}
FINE = {"count": torch.tensor(1), "weight": torch.tensor(1.0)}
Numbers = NDArray[Any]
Result = TypeVar("Result")


@dataclass
class Record:
    """Seconds by stage of every client and of the server; bytes both ways."""

    stages: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    bytes: int = 0

    @contextmanager
    def client(self, stage: str) -> Iterator[None]:
        """Time what a client does."""
        yield from self._timed(f"client: {stage}")

    @contextmanager
    def server(self, stage: str) -> Iterator[None]:
        """Time what the server does."""
        yield from self._timed(f"server: {stage}")

    def _timed(self, stage: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.stages[stage].append(time.perf_counter() - start)

    def seconds(self, stage: str) -> float:
        """What a client in the middle takes, or the server."""
        measured = self.stages[stage]
        return statistics.median(measured) if stage.startswith("client") else sum(measured)


def sent(record: Record, tensors: Tree) -> list[Array]:
    """A tree as Flower sends it: an array in the npy format per leaf."""
    arrays = [Array(leaf.numpy()) for leaf in tensors.values()]
    record.bytes += sum(len(array.data) for array in arrays)
    return arrays


def copied(array: Array, client: int) -> Numbers:
    """An array as Flower reads it."""
    return array.numpy()


def in_place(array: Array, client: int) -> Numbers:
    """An array where it lies in the bytes that came."""
    file = BytesIO(array.data)
    npy.read_magic(file)
    shape, _, dtype = npy.read_array_header_1_0(file)
    return np.frombuffer(array.data, dtype, prod(shape), file.tell()).reshape(shape)


def plain(trees: list[Tree], read: Callable[[Array, int], Numbers], record: Record) -> Tree:
    """Send as it is, read, add."""
    answers = []
    for tree in trees:
        with record.client("write"):
            answers.append(sent(record, tree))
    with record.server("read, add"):
        total = [np.zeros(leaf.shape, np.float32) for leaf in trees[0].values()]
        for client, answer in enumerate(answers):
            for ours, theirs in zip(total, answer, strict=True):
                np.add(ours, read(theirs, client), out=ours)
    return {name: torch.from_numpy(each) for name, each in zip(trees[0], total, strict=True)}


def secured(trees: list[Tree], dropouts: int, record: Record) -> Tree:
    """The whole protocol with all that travels; the last clients drop out after the set-up."""
    sessions = setup(record)
    keys = {client: session.public for client, session in sessions.items()}
    survivors = list(range(CLIENTS - dropouts))
    dropped = list(range(CLIENTS - dropouts, CLIENTS))
    answers = {}
    for client in survivors:
        with record.client("encode"):
            words = secure.encode(trees[client], FINE, CLIENTS, RANGE)
        with record.client("mask"):
            sessions[client], words = secure.mask(sessions[client], "train", words)
        with record.client("write"):
            answers[client] = [Array(piece) for piece in words.pieces()]
        record.bytes += sum(len(array.data) for array in answers[client])
    with record.server("read, add"):
        total = Words.zeros(*secure.sizes(trees[0], FINE))
        for client, arrays in answers.items():
            secure.add(total, [in_place(array, client) for array in arrays], client)
    revealed = {}
    for client in survivors:
        with record.client("reveal"):
            answer = secure.reveal_shares(sessions[client], "train", survivors, dropped)
        sessions[client], revealed[client] = answer
        record.bytes += sum(map(len, revealed[client].values()))
    with record.server("unmask"):
        total = secure.unmask(
            total, "train", keys, survivors, dropped, revealed, threshold=THRESHOLD
        )
    with record.server("decode"):
        result, _ = secure.decode(total, trees[0], FINE, len(survivors), RANGE)
    return result


def setup(record: Record) -> dict[int, secure.Session]:
    """Keys and letters of everyone, for both sums of a round."""
    sessions, keys, letters = {}, {}, {}
    for client in range(CLIENTS):
        with record.client("set up"):
            sessions[client], keys[client] = secure.open_session(PURPOSES)
    for client in sessions:
        with record.client("set up"):
            told = secure.share_secrets(sessions[client], client, keys, THRESHOLD)
        sessions[client], letters[client] = told
    for client in sessions:
        inbox = {peer: sealed[client] for peer, sealed in letters.items() if peer != client}
        with record.client("set up"):
            sessions[client] = secure.accept_letters(sessions[client], inbox)
    up = sum(len(key.to_bytes()) for key in keys.values())
    there_and_back = 2 * sum(len(each) for sealed in letters.values() for each in sealed.values())
    record.bytes += up * (1 + CLIENTS) + there_and_back
    return sessions


def measured(sum_up: Callable[[Record], Result]) -> tuple[Record, Result]:
    record = Record()
    result = sum_up(record)
    setups = record.stages.pop("client: set up", [])
    for client in range(len(setups) // 3):  # three steps of each client are one stage
        record.stages["client: set up"].append(sum(setups[client::CLIENTS]))
    return record, result


def best(records: list[Record], stage: str) -> float:
    return min(record.seconds(stage) for record in records)


def everyone(records: list[Record]) -> float:
    """The least seconds that all the clients and the server took one after another."""
    return min(sum(sum(times) for times in record.stages.values()) for record in records)


def stages_table(plains: list[Record], secures: list[Record]) -> Table:
    title = "milliseconds by stage, best of the repetitions"
    table = make_table(title, "stage", "plain", "secure")
    for stage in sorted(secures[0].stages):
        alone = f"{1e3 * best(plains, stage):.0f}" if stage in plains[0].stages else "-"
        table.add_row(stage, alone, f"{1e3 * best(secures, stage):.0f}")
    return table


def total(records: list[Record]) -> float:
    """One client's seconds, since the clients work at the same time, and the server's."""
    return sum(best(records, stage) for stage in records[0].stages)


def ratios_table(plains: list[Record], others: dict[str, list[Record]]) -> Table:
    heads = ("sum", "client + server ms", "ratio", "bytes", "all clients ms", "ratio ")
    table = make_table("against the plain sum", *heads)
    for name, found in {"plain": plains, **others}.items():
        one, all_ = total(found), everyone(found)
        table.add_row(
            name, f"{1e3 * one:.0f}", f"{one / total(plains):.2f}",
            f"{found[0].bytes / plains[0].bytes:.4f}",
            f"{1e3 * all_:.0f}", f"{all_ / everyone(plains):.2f}",
        )  # fmt: skip
    return table


def main() -> None:
    """Plain and secure sums in turn."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    shapes = dict(models.build("resnet18", shape=(3, 32, 32), classes=10).named_parameters())
    trees = [
        {name: 0.1 * torch.randn(leaf.shape) for name, leaf in shapes.items()}
        for _ in range(CLIENTS)
    ]
    sums = {
        "plain": partial(plain, trees, copied),
        "plain, read in place": partial(plain, trees, in_place),
        **{f"secure, {lost} drop out": partial(secured, trees, lost) for lost in DROPOUTS},
    }
    records: dict[str, list[Record]] = {name: [] for name in sums}
    results: dict[str, Tree] = {}
    for _ in range(options.repeat):
        for name, sum_up in sums.items():
            record, results[name] = measured(sum_up)
            records[name].append(record)
    plains, unhurt = records.pop("plain"), f"secure, {DROPOUTS[0]} drop out"
    differences = tree_map(torch.sub, results["plain"], results[unhurt])
    error = max(float(leaf.abs().max()) for leaf in differences.values())
    console = Console(width=110, highlight=False)
    console.print(stages_table(plains, records[unhurt]))
    console.print(ratios_table(plains, records))
    console.print(f"threads {torch.get_num_threads()}, repetitions {options.repeat}")
    console.print(f"largest difference of the sums {error:.1e}; step {secure.step(RANGE):.1e}")
    console.print(f"wanted without dropouts: time below {LIMITS['time']}, bytes {LIMITS['bytes']}")


if __name__ == "__main__":
    main()
