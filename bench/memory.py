"""Memory: it does not grow from round to round, nor with the number of clients."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

import torch
from rich.console import Console
from rich.table import Table

from fedfm import FedAvg, FedFM, Partition, Piece, Training, data, models
from fedfm.config import make_config
from fedfm.data.dataset import Dataset, Split
from fedfm.run.records import Progress
from fedfm.run.simulation import Simulation

ROUNDS = (20, 50, 100, 150, 200)
CLIENTS = (100, 1000)
SAMPLES = 40_000
MEBIBYTE = 2**20
Given = TypeVar("Given")
Found = TypeVar("Found")


def resident() -> float:
    """The memory that this process has now, in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / MEBIBYTE


def peak() -> float:
    """The most memory that this process ever had, in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def rounds(source: Dataset, method: Piece, training: Training) -> Iterator[int]:
    """Run a federation with evaluation, as `fedfm.simulate` does; yields the round just done."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = models.build("cnn", shape=source.shape, classes=len(source.classes))
    config = make_config(
        method, partition=Partition("iid"), training=training, seed=0, executor="stacked"
    )
    simulation = Simulation(model, source, config)
    progress = Progress(simulation.start)
    for _ in range(training.rounds):
        progress = simulation.advance(progress)
        yield progress.state.round


def over_rounds(method: Piece) -> list[float]:
    """The memory after the rounds `ROUNDS` of W1 (see stacked.py)."""
    training = Training(clients=100, participation=0.1, epochs=5, batch_size=8, rounds=max(ROUNDS))
    every = rounds(data.load("digits"), method, training)
    return [resident() for number in every if number in ROUNDS]


def over_clients(clients: int) -> tuple[float, float]:
    """FedAvg with so many clients on the same data, 10 per round: memory before, peak memory."""
    rng = torch.Generator().manual_seed(0)
    images = torch.randint(17, (SAMPLES, 1, 8, 8), dtype=torch.uint8, generator=rng)
    train = Split(images, torch.randint(10, (SAMPLES,), generator=rng))
    test = train.subset(torch.arange(1000))
    source = Dataset("random", train, test, tuple(map(str, range(10))), (8.0,), (5.0,))
    training = Training(
        clients=clients, participation=10 / clients, epochs=1, batch_size=8, rounds=10
    )
    before = resident()
    for _ in rounds(source, FedAvg(), training):
        pass
    return before, peak()


def alone(task: Callable[[Given], Found], given: Given) -> Found:
    """The result of a task in a fresh process, whose memory nothing else has touched."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(task, given).result()


def growth_table() -> Table:
    """Memory by rounds, for a method without and one with state on the server."""
    table = Table(title="W1: resident memory in MiB after so many rounds", title_justify="left")
    table.add_column("method")
    for number in ROUNDS:
        table.add_column(str(number), justify="right")
    table.add_column(f"{ROUNDS[-1]} / {ROUNDS[0]}", justify="right")
    for method in (FedAvg(), FedFM(start_round=0)):
        found = alone(over_rounds, method)
        cells = [f"{value:.1f}" for value in found]
        table.add_row(method.name, *cells, f"{found[-1] / found[0]:.3f}")
    return table


def clients_table() -> Table:
    """Peak memory by the number of clients, and what of it is not the libraries and the data."""
    title = f"FedAvg, 10 clients a round, {SAMPLES:,} images in all: peak memory in MiB"
    table = Table(title=title, title_justify="left")
    for heading in ("clients", "before the federation", "peak", "federation", "ratio of peaks"):
        table.add_column(heading, justify="right")
    found = [alone(over_clients, clients) for clients in CLIENTS]
    for clients, (before, most) in zip(CLIENTS, found, strict=True):
        sizes = (before, most, most - before)
        cells = [f"{value:.1f}" for value in sizes]
        table.add_row(f"{clients:,}", *cells, f"{most / found[0][1]:.3f}")
    return table


def main() -> None:
    """Measure both."""
    console = Console(width=110, highlight=False)
    console.print(growth_table())
    console.print(clients_table())


if __name__ == "__main__":
    main()
