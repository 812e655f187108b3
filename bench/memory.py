"""Memory: it does not grow from round to round."""

import os
from pathlib import Path

import torch
from bench._shared import even_config, make_table, run_alone
from rich.console import Console

from fedfm import FedAvg, FedFM, Piece, Training, data, models
from fedfm.run.records import Progress
from fedfm.run.simulation import Simulation

ROUNDS = (20, 50, 100, 150, 200)
W1 = Training(clients=100, participation=0.1, epochs=5, batch_size=8, rounds=max(ROUNDS))
"""See stacked.py."""


def resident() -> float:
    """Return the memory that this process has now, in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def over_rounds(method: Piece) -> list[float]:
    """Run W1 with evaluation, as `fedfm.simulate` does; return the memory after `ROUNDS`."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    source, sizes = data.load("digits"), []
    model = models.build("cnn", shape=source.shape, classes=len(source.classes))
    simulation = Simulation(model, source, even_config(method, W1))
    progress = Progress(simulation.start)
    for number in range(1, W1.rounds + 1):
        progress = simulation.advance(progress)
        sizes += [resident()] if number in ROUNDS else []
    return sizes


def main() -> None:
    """Measure a method without and one with state on the server, each in a process of its own."""
    heads = ("method", *map(str, ROUNDS), f"{ROUNDS[-1]} / {ROUNDS[0]}")
    table = make_table("W1: resident memory in MiB after so many rounds", *heads)
    for method in (FedAvg(), FedFM(start_round=0)):
        sizes = run_alone(over_rounds, method)
        cells = [f"{size:.1f}" for size in sizes]
        table.add_row(method.name, *cells, f"{sizes[-1] / sizes[0]:.3f}")
    Console(width=110, highlight=False).print(table)


if __name__ == "__main__":
    main()
