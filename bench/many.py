"""Rounds of many clients: the time and memory of a round depend on its cohort alone.

    python -m bench.many          # on a CPU: small clients, up to a million of them
    python -m bench.many --gpu    # on a GPU: up to 1,000 ResNet18 clients in one round

On a CPU, a round has 100 or 1,000 small clients out of up to 1,000,000; the data grow with the
clients. Two methods: FedAvg, and SCAFFOLD, whose clients keep a state on disk. On a GPU, rounds of
10 to 1,000 clients are trained in parts that fit into its memory. Each case runs in a process of
its own. The first two rounds are not timed. Memory is given before the first round, which holds
the data and the partition, and at its peak in the last one.
"""

import argparse
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import torch
from bench._shared import even_config, make_table, peak_memory, random_images, run_alone
from rich.console import Console

from fedfm import FedAvg, Piece, Training, models
from fedfm.core.client_states import OnDisk
from fedfm.methods import Scaffold
from fedfm.rounds.round import run_round
from fedfm.run.simulation import Simulation

ROUNDS = 8
FIGURES = ("round ms", "ms a client", "MiB before", "MiB at the peak")


@dataclass(frozen=True)
class Case:
    """A round of `cohort` of `clients` clients, each with `samples` samples."""

    piece: Piece
    clients: int
    cohort: int
    samples: int = 4
    gpu: bool = False

    def training(self) -> Training:
        """Return local training: one epoch, so that it is a few steps."""
        batch = 50 if self.gpu else 4
        part = self.cohort / self.clients
        return Training(
            clients=self.clients, participation=part, epochs=1, batch_size=batch, validation=0
        )


SMALL = [
    Case(piece, clients, cohort)
    for piece in (FedAvg(), Scaffold())
    for clients, cohort in ((1_000, 100), (10_000, 100), (10_000, 1_000), (1_000_000, 1_000))
]
LARGE = [
    Case(FedAvg(), clients, clients, samples=50, gpu=True) for clients in (10, 100, 300, 1_000)
]


def measure(case: Case) -> tuple[float, float, float]:
    """Return the seconds of a round, and the MiB before the first and at the peak of the last."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    shape = (3, 32, 32) if case.gpu else (1, 8, 8)
    model = models.build("resnet18" if case.gpu else "cnn", shape=shape, classes=10)
    model.to("cuda" if case.gpu else "cpu")
    config = even_config(case.piece, case.training(), "graph" if case.gpu else "stacked")
    with TemporaryDirectory() as folder:
        data = random_images(case.samples * case.clients, shape=shape)
        simulation = Simulation(model, data, config, OnDisk(Path(folder)))
        state, times, before = simulation.start, list[float](), used_memory(case.gpu)
        for _ in range(ROUNDS):
            began = time.perf_counter()
            state, _ = run_round(state, simulation.federation)
            state.clients.tidy()
            float(next(iter(state.model.params.values())).sum())  # waits for a GPU
            times.append(time.perf_counter() - began)
    return median(times[2:]), before, used_memory(case.gpu)


def used_memory(gpu: bool) -> float:
    """Return the peak of memory so far, in MiB: of the GPU, or of the process."""
    return torch.cuda.max_memory_allocated() / 2**20 if gpu else peak_memory()


def main() -> None:
    """Measure every case in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpu", action="store_true")
    gpu = parser.parse_args().gpu
    title = "Many clients" + (", ResNet18, 50 samples each" if gpu else ", 4 samples each")
    table = make_table(title, "method", "clients", "in a round", *FIGURES)
    for case in LARGE if gpu else SMALL:
        seconds, before, peak = run_alone(measure, case)
        table.add_row(
            case.piece.name, f"{case.clients:,}", f"{case.cohort:,}", f"{1e3 * seconds:.0f}",
            f"{1e3 * seconds / case.cohort:.2f}", f"{before:.0f}", f"{peak:.0f}",
        )  # fmt: skip
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
