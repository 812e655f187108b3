"""Rounds of many clients: the time and memory of a round depend on its cohort alone.

A hundred clients of 20 images each take part in every round, of 1,000 clients and of 10,000; the
data grow with the clients, as they would. Two methods: FedAvg, and SCAFFOLD, whose clients keep a
state on disk. Each number of clients runs in a process of its own; training and evaluation apart,
since every client's validation samples are evaluated (`evaluate_every` makes that rarer).
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import torch
from rich.console import Console
from rich.table import Table

from fedfm import FedAvg, Partition, Piece, Training, models
from fedfm.config import make_config
from fedfm.core.client_states import OnDisk
from fedfm.data.dataset import Dataset, Split
from fedfm.methods import Scaffold
from fedfm.rounds.round import run_round
from fedfm.run.simulation import Simulation

COHORT, SAMPLES, ROUNDS = 100, 20, 8
METHODS: dict[str, Piece] = {"fedavg": FedAvg(), "scaffold": Scaffold()}


def images(clients: int) -> Dataset:
    """Random images, 20 for each client."""
    rng = torch.Generator().manual_seed(0)

    def split(n: int) -> Split:
        inputs = torch.randint(17, (n, 1, 8, 8), generator=rng, dtype=torch.uint8)
        return Split(inputs, torch.arange(n) % 10)

    return Dataset("random", split(SAMPLES * clients), split(1000), tuple("0123456789"), (5.0,))


def measured(method: str, clients: int, folder: Path) -> dict[str, float]:
    """Seconds of a round and of an evaluation, and the peak of memory in MiB."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = models.build("cnn", shape=(1, 8, 8), classes=10)
    training = Training(clients=clients, participation=COHORT / clients, epochs=2, batch_size=8)
    config = make_config(
        METHODS[method], partition=Partition("iid"), training=training, seed=0, executor="stacked"
    )
    simulation = Simulation(model, images(clients), config, OnDisk(folder))
    state, times = simulation.start, []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        state, _ = run_round(state, simulation.federation)
        state.clients.tidy()
        times.append(time.perf_counter() - began)
    began = time.perf_counter()
    simulation.evaluate(state.model)
    evaluation = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"round": median(times[2:]), "evaluation": evaluation, "peak": peak}


def in_a_process(method: str, clients: int) -> dict[str, float]:
    """The same, measured by a fresh interpreter."""
    command = [sys.executable, __file__, "--one", method, str(clients)]
    found: dict[str, float] = json.loads(
        subprocess.run(command, check=True, capture_output=True, text=True).stdout
    )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", nargs=2, metavar=("METHOD", "CLIENTS"), help="measure one case")
    options = parser.parse_args()
    if options.one:
        with TemporaryDirectory() as folder:
            print(json.dumps(measured(options.one[0], int(options.one[1]), Path(folder))))
        return
    table = Table(title=f"{COHORT} clients a round, one thread; ratios to 1,000 clients")
    for head in ("method", "clients", "round ms", "ratio", "evaluation ms", "peak MiB", "ratio"):
        table.add_column(head, justify="right")
    for method in METHODS:
        first = in_a_process(method, 1_000)
        for clients, found in ((1_000, first), (10_000, in_a_process(method, 10_000))):
            table.add_row(
                method, f"{clients:,}",
                f"{1e3 * found['round']:.0f}", f"{found['round'] / first['round']:.2f}",
                f"{1e3 * found['evaluation']:.0f}",
                f"{found['peak']:.0f}", f"{found['peak'] / first['peak']:.2f}",
            )  # fmt: skip
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
