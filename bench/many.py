"""Rounds of many clients: the time and memory of a round depend on its cohort alone.

A hundred clients of 20 images each take part in every round, of 1,000 clients and of 10,000; the
data grow with the clients. Two methods: FedAvg, and SCAFFOLD, whose clients keep a state on disk.
Each number of clients runs in a process of its own. Training and evaluation are timed separately,
because every client's validation samples are evaluated (`evaluate_every` makes that rarer).
"""

import time
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

COHORT, SAMPLES, ROUNDS = 100, 20, 8


def measure(piece: Piece, clients: int) -> tuple[float, float, float]:
    """Return the seconds of a round and of an evaluation, and the peak of memory in MiB."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = models.build("cnn", shape=(1, 8, 8), classes=10)
    training = Training(clients=clients, participation=COHORT / clients, epochs=2, batch_size=8)
    with TemporaryDirectory() as folder:
        data, states = random_images(SAMPLES * clients), OnDisk(Path(folder))
        simulation = Simulation(model, data, even_config(piece, training), states)
        state, times = simulation.start, []
        for _ in range(ROUNDS):
            began = time.perf_counter()
            state, _ = run_round(state, simulation.federation)
            state.clients.tidy()
            times.append(time.perf_counter() - began)
        began = time.perf_counter()
        simulation.evaluate(state.model)
    return median(times[2:]), time.perf_counter() - began, peak_memory()


def main() -> None:
    """Measure every case in a process of its own."""
    title = f"{COHORT} clients a round, one thread; ratios to 1,000 clients"
    heads = ("method", "clients", "round ms", "ratio", "evaluation ms", "peak MiB", "ratio")
    table = make_table(title, *heads)
    for piece in (FedAvg(), Scaffold()):
        sizes = {clients: run_alone(measure, piece, clients) for clients in (1_000, 10_000)}
        base, _, least = sizes[1_000]
        for clients, (seconds, evaluation, peak) in sizes.items():
            table.add_row(
                piece.name, f"{clients:,}", f"{1e3 * seconds:.0f}", f"{seconds / base:.2f}",
                f"{1e3 * evaluation:.0f}", f"{peak:.0f}", f"{peak / least:.2f}",
            )  # fmt: skip
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
