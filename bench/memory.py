"""Memory: it does not grow from round to round, nor with the number of clients."""

import os
from collections.abc import Iterator
from pathlib import Path

import torch
from bench._shared import even_config, make_table, peak_memory, random_images, run_alone
from rich.console import Console
from rich.table import Table

from fedfm import FedAvg, FedFM, Piece, Training, data, models
from fedfm.data.dataset import Dataset
from fedfm.run.records import Progress
from fedfm.run.simulation import Simulation

ROUNDS = (20, 50, 100, 150, 200)
CLIENTS = (100, 1000)
SAMPLES = 40_000


def resident() -> float:
    """Return the memory that this process has now, in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def rounds(source: Dataset, method: Piece, training: Training) -> Iterator[int]:
    """Run a federation with evaluation, as `fedfm.simulate` does; yield the number of rounds."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = models.build("cnn", shape=source.shape, classes=len(source.classes))
    simulation = Simulation(model, source, even_config(method, training))
    progress = Progress(simulation.start)
    for _ in range(training.rounds):
        progress = simulation.advance(progress)
        yield progress.state.round


def over_rounds(method: Piece) -> list[float]:
    """Return the memory after the rounds `ROUNDS` of W1 (see stacked.py)."""
    training = Training(clients=100, participation=0.1, epochs=5, batch_size=8, rounds=max(ROUNDS))
    every = rounds(data.load("digits"), method, training)
    return [resident() for number in every if number in ROUNDS]


def over_clients(clients: int) -> tuple[float, float]:
    """Return memory before and peak of FedAvg with `clients` clients, 10 of them in a round."""
    source = random_images(SAMPLES)
    training = Training(
        clients=clients, participation=10 / clients, epochs=1, batch_size=8, rounds=10
    )
    before = resident()
    for _ in rounds(source, FedAvg(), training):
        pass
    return before, peak_memory()


def growth_table() -> Table:
    """Return memory by rounds, for a method without and one with state on the server."""
    heads = ("method", *map(str, ROUNDS), f"{ROUNDS[-1]} / {ROUNDS[0]}")
    table = make_table("W1: resident memory in MiB after so many rounds", *heads)
    for method in (FedAvg(), FedFM(start_round=0)):
        sizes = run_alone(over_rounds, method)
        cells = [f"{size:.1f}" for size in sizes]
        table.add_row(method.name, *cells, f"{sizes[-1] / sizes[0]:.3f}")
    return table


def clients_table() -> Table:
    """Return peak memory by the number of clients, with and without libraries and data."""
    title = f"FedAvg, 10 clients a round, {SAMPLES:,} images in all: peak memory in MiB"
    heads = ("clients", "before the federation", "peak", "federation", "ratio of peaks")
    table = make_table(title, *heads, names=0)
    sizes = [run_alone(over_clients, clients) for clients in CLIENTS]
    for clients, (before, most) in zip(CLIENTS, sizes, strict=True):
        cells = [f"{size:.1f}" for size in (before, most, most - before)]
        table.add_row(f"{clients:,}", *cells, f"{most / sizes[0][1]:.3f}")
    return table


def main() -> None:
    """Measure both."""
    console = Console(width=110, highlight=False)
    console.print(growth_table())
    console.print(clients_table())


if __name__ == "__main__":
    main()
