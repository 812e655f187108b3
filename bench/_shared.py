"""What several benchmarks share: tables, the machine, memory, and processes of their own."""

import platform
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import ParamSpec, TypeVar

import torch
from rich.table import Table

from fedfm import Partition, Piece, Training
from fedfm.config import Config, make_config
from fedfm.data.dataset import Dataset
from fedfm.data.split import Split

P = ParamSpec("P")
T = TypeVar("T")


def make_table(title: str, *headings: str, names: int = 1) -> Table:
    """Return a table with `names` columns of text and further columns of numbers."""
    table = Table(title=title, title_justify="left")
    for i, heading in enumerate(headings):
        table.add_column(heading, justify="left" if i < names else "right")
    return table


def describe_machine() -> str:
    """Return processor, cores, and the versions of Python and torch."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    cpu = f"{names[0]}, {len(names)} cores" if names else platform.machine()
    return f"{cpu}; Python {platform.python_version()}, torch {torch.__version__}"


def peak_memory() -> float:
    """Return the most memory that this process ever had, in MiB (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def run_alone(task: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
    """Return the result of a task in a fresh process, whose memory nothing else has touched."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(task, *args, **options).result()


def random_images(
    samples: int, tests: int = 1000, shape: tuple[int, ...] = (1, 8, 8), largest: int = 16
) -> Dataset:
    """Return random images of ten classes, with values from 0 to `largest`."""
    rng = torch.Generator().manual_seed(0)
    train, test = (
        Split(
            torch.randint(largest + 1, (n, *shape), generator=rng, dtype=torch.uint8),
            torch.randint(10, (n,), generator=rng),
        )
        for n in (samples, tests)
    )
    return Dataset("random", train, test, tuple("0123456789"), (largest / 2,), (largest / 4,))


def even_config(piece: Piece, training: Training, executor: str = "stacked") -> Config:
    """Return a config whose clients share the data evenly."""
    return make_config(piece, partition=Partition("iid"), training=training, executor=executor)
