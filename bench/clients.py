"""Client state at scale: memory is bounded by the cohort, not by the number of clients."""

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Literal

import torch
from rich.console import Console
from rich.table import Table

from fedfm import FedFMLite, Partition, Piece, Training, models, simulate
from fedfm.data.dataset import Dataset, Split
from fedfm.methods import FedAvg, FedDyn, Moon, Scaffold

Where = Literal["memory", "disk"]
SAMPLES, COHORT, ROUNDS = 40_000, 20, 20
CASES: tuple[tuple[int, Where], ...] = ((200, "disk"), (2000, "disk"), (2000, "memory"))
METHODS = (FedAvg(), Scaffold(), FedDyn(), Moon(), FedFMLite(start_round=0, models_every=20))


def peak() -> float:
    """The most memory this process ever had, in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def measure(piece: Piece, clients: int, where: Where) -> float:
    """The memory that a run adds, in MiB, with `COHORT` clients a round out of `clients`."""
    torch.set_num_threads(1)
    rng = torch.Generator().manual_seed(0)
    inputs = torch.randint(256, (SAMPLES, 1, 8, 8), generator=rng, dtype=torch.uint8)
    labels = torch.arange(SAMPLES) % 10
    data = Dataset(
        "noise", Split(inputs, labels), Split(inputs[:100], labels[:100]), tuple("0123456789"),
        mean=(128.0,), std=(74.0,),
    )  # fmt: skip
    model = models.build("mlp", shape=data.shape, classes=10, hidden=[512, 256])
    training = Training(
        clients=clients, rounds=ROUNDS, participation=COHORT / clients, epochs=1, batch_size=8
    )
    before = peak()
    simulate(model, data, piece, partition=Partition("iid"), training=training, client_states=where)
    return peak() - before


def main() -> None:
    """Every case in a process of its own."""
    table = Table(
        "method", "200 clients, disk", "2,000 clients, disk", "2,000 clients, memory",
        title=f"MiB that {ROUNDS} rounds of {COHORT} clients add; a model has 0.64 MiB",
    )  # fmt: skip
    for piece in METHODS:
        cells = []
        for clients, where in CASES:
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                cells.append(f"{pool.submit(measure, piece, clients, where).result():.0f}")
        table.add_row(piece.name, *cells)
    Console().print(table)


if __name__ == "__main__":
    main()
